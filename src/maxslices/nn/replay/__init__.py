"""Replay of a torch step without a device: its allocations and frees, in order.

`replay` runs a model or a function on tensors without data (torch's meta device) and returns a
`Trace`. `CachingAllocator` simulates torch's allocator on it, `StepFamily` scales it to other
batches, and `Workspaces` has the memory that libraries take in addition to the tensors. torch is
imported by the first replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..nn_errors import DataDependentError, TraceError
from .caching_allocator import CachingAllocator, least_limit
from .step_family import Scaled, StepFamily
from .trace import CATEGORIES, ModuleCall, ReplayEvent, ReplayPeak, StageMark, Storage, Trace
from .workspaces import OperatorCall, Workspace, Workspaces

if TYPE_CHECKING:
    from .nested import Spec
    from .recorder import Replay
    from .replay_step import replay

__all__ = [
    "CachingAllocator",
    "Workspace",
    "CATEGORIES",
    "OperatorCall",
    "DataDependentError",
    "ReplayEvent",
    "StepFamily",
    "StageMark",
    "ModuleCall",
    "ReplayPeak",
    "Replay",
    "Scaled",
    "Spec",
    "Storage",
    "Trace",
    "TraceError",
    "Workspaces",
    "least_limit",
    "replay",
]


_HOMES = {"Replay": ".recorder", "Spec": ".nested", "replay": ".replay_step"}
"""Module of each name that needs torch."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
