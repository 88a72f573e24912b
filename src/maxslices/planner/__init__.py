"""From a pipeline and the shape of a scan to a plan; nothing here runs a method."""

from .pipeline import Pipeline
from .plan import Plan, SectionPlan, StepPlan
from .planning import Limits, make_plan
from .steps import Reference, Step

__all__ = [
    "Limits",
    "Pipeline",
    "Plan",
    "Reference",
    "SectionPlan",
    "Step",
    "StepPlan",
    "make_plan",
]
