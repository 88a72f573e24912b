"""Plans from memory models and budgets: arithmetic alone, nothing is opened or run."""

from .placement import Budgets
from .plan import MadeFor, Plan
from .planning import make_plan
from .section_plan import SectionPlan, StepPlan

__all__ = ["Budgets", "MadeFor", "Plan", "SectionPlan", "StepPlan", "make_plan"]
