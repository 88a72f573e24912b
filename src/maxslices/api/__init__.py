"""The questions asked from Python: would it run, what would it take, and do it."""

from .check_scan import check
from .plan_scan import plan
from .run_scan import run

__all__ = ["check", "plan", "run"]
