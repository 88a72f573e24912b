"""The functions of Python users: `check`, `plan` and `run`."""

from .check_scan import check
from .plan_scan import plan
from .run_scan import run

__all__ = ["check", "plan", "run"]
