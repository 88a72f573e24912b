"""From models and budgets to a plan: arithmetic alone, nothing is opened or run."""

from .budgets import Limits
from .plan import Plan, SectionPlan, StepPlan
from .planning import check_supplied, make_plan

__all__ = ["Limits", "Plan", "SectionPlan", "StepPlan", "check_supplied", "make_plan"]
