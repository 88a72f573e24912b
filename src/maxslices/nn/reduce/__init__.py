"""Rewrites of a model that make a training step fit into less memory, at the least cost in time."""

from __future__ import annotations

from .kept_tensors import COMPRESSORS, Compressor
from .memopt import memory_optimization
from .reduction import MEANS, reduce_memory, restore
from .reduction_summary import ReductionSummary
from .rewrite import Rewrite, apply_rewrites, undo_rewrites
from .run_on_device import resolve_device

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "MEANS",
    "ReductionSummary",
    "Rewrite",
    "memory_optimization",
    "reduce_memory",
    "resolve_device",
    "restore",
    "apply_rewrites",
    "undo_rewrites",
]
