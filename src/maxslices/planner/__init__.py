"""From a pipeline and the shape of a scan to a plan; nothing here runs a method."""

from .limits import Limits
from .pipeline import Pipeline
from .plain import plain
from .plan import Plan, SectionPlan, StepPlan
from .planning import check_supplied, make_plan
from .scan import ScanSpec
from .sections import cut_into_sections
from .steps import Reference, Step
from .tiling import Tiling, Window

__all__ = [
    "Limits",
    "Pipeline",
    "Plan",
    "Reference",
    "ScanSpec",
    "SectionPlan",
    "Step",
    "StepPlan",
    "Tiling",
    "Window",
    "check_supplied",
    "cut_into_sections",
    "make_plan",
    "plain",
]
