"""The test kit for authors of methods."""

from __future__ import annotations

from .case import Case
from .check import CheckResult, EstimateError, check_max_slices

__all__ = ["Case", "CheckResult", "EstimateError", "check_max_slices"]
