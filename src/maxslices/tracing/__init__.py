"""A torch step replayed without a device: what it allocates, holds and frees.

`replay` runs a model or a function on tensors without data (torch's meta device) and
returns a `Trace`. `Allocator` tells what fits from it, `Family` scales it to other batch
sizes, `WorkAreas` knows what the libraries take beside the tensors. torch is imported
when something is replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .allocator import Allocator, least_limit
from .errors import DataDependentError, TraceError
from .family import Family
from .scaling import Scaled
from .storages import CATEGORIES, Event, Mark, ModuleCall, Peak, Storage
from .trace import Trace
from .work_areas import Area, Call, WorkAreas

if TYPE_CHECKING:
    from .recorder import Replay
    from .spec import Spec
    from .step import replay

__all__ = [
    "Allocator",
    "Area",
    "CATEGORIES",
    "Call",
    "DataDependentError",
    "Event",
    "Family",
    "Mark",
    "ModuleCall",
    "Peak",
    "Replay",
    "Scaled",
    "Spec",
    "Storage",
    "Trace",
    "TraceError",
    "WorkAreas",
    "least_limit",
    "replay",
]


_HOMES = {"Replay": ".recorder", "Spec": ".spec", "replay": ".step"}
"""Modules of what needs torch."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
