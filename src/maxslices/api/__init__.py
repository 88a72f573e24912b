"""The questions asked from Python: would it run, what would it take, and do it."""

from .api import check, plan, run

__all__ = ["check", "plan", "run"]
