"""Test kit for authors of methods.

Names are imported when they are used, because pytest loads this package in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..checking.case import Case
    from ..checking.check_result import CheckResult, EstimateError
    from ..checking.estimate_check import check_max_slices
    from ..checking.result_in_blocks import find_halo
    from .conformance import MethodConformance

_HOME = {
    "Case": "maxslices.checking.case",
    "CheckResult": "maxslices.checking.check_result",
    "EstimateError": "maxslices.checking.check_result",
    "MethodConformance": "maxslices.testing.conformance",
    "check_max_slices": "maxslices.checking.estimate_check",
    "find_halo": "maxslices.checking.result_in_blocks",
}
__all__ = [
    "Case",
    "CheckResult",
    "EstimateError",
    "MethodConformance",
    "check_max_slices",
    "find_halo",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
