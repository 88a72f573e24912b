"""Less memory for a training step, and what it costs."""

from __future__ import annotations

from .accumulate import backward_in_parts
from .api import MEANS, reduce_memory, restore
from .compress import COMPRESSORS, Compressor
from .device import resolve_device
from .levels import reduce_by_level
from .summary import ReductionSummary
from .treat import Treatment, treat, untreat

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "MEANS",
    "ReductionSummary",
    "Treatment",
    "backward_in_parts",
    "reduce_by_level",
    "reduce_memory",
    "resolve_device",
    "restore",
    "treat",
    "untreat",
]
