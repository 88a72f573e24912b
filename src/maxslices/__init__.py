"""maxslices: GPU image processing in as many slices as fit."""

from __future__ import annotations

from .api import check, plan, run
from .arrays import ArraySpec
from .backends import pinned_empty
from .decorator import method
from .errors import MaxslicesError
from .ledger import Ledger, from_ledger
from .memory import MemoryModel
from .planner import Pipeline, Plan
from .registry import Registry, registry
from .runner import Report

__version__ = "0.1.0"
__all__ = [
    "ArraySpec",
    "Ledger",
    "MaxslicesError",
    "MemoryModel",
    "Pipeline",
    "Plan",
    "Registry",
    "Report",
    "check",
    "from_ledger",
    "method",
    "pinned_empty",
    "plan",
    "registry",
    "run",
]
