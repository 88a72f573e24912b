"""A torch step replayed without a device: what it allocates, holds and frees.

`replay` runs a model or a function on tensors without data (torch's meta device) and
returns a `Trace`. `Allocator` tells what fits from it, `Family` scales it to other batch
sizes, `WorkAreas` knows what the libraries take beside the tensors. torch is imported
when something is replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .batch_scaling import Scaled
from .caching_allocator import Allocator, least_limit
from .replay_errors import DataDependentError, TraceError
from .step_family import Family
from .storages import CATEGORIES, Event, Mark, ModuleCall, Peak, Storage
from .trace import Trace
from .workspaces import Area, Call, WorkAreas

if TYPE_CHECKING:
    from .recorder import Replay
    from .replay_step import replay
    from .tensor_spec import Spec

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


_HOMES = {"Replay": ".recorder", "Spec": ".tensor_spec", "replay": ".replay_step"}
"""Modules of what needs torch."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
