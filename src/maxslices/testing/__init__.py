"""The test kit for authors of methods.

Nothing is imported before it is used: pytest loads this package in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .case import Case
    from .check import check_max_slices
    from .conformance import MethodConformance
    from .result import CheckResult, EstimateError

_HOME = {
    "Case": "case",
    "CheckResult": "result",
    "EstimateError": "result",
    "MethodConformance": "conformance",
    "check_max_slices": "check",
}
__all__ = ["Case", "CheckResult", "EstimateError", "MethodConformance", "check_max_slices"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
