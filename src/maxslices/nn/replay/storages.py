"""Parts of a trace: storages, events, marks, calls of modules, and what is alive at a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...core.allocators import round_to_granule

Category = Literal[
    "input",
    "weights",
    "activations",
    "gradients",
    "optimizer state",
    "workspace",
    "temporary",
]
"""Purpose that memory is held for."""

CATEGORIES: tuple[Category, ...] = (
    "weights",
    "input",
    "activations",
    "gradients",
    "optimizer state",
    "workspace",
    "temporary",
)
"""All categories, in the order in which a step needs them."""


@dataclass(slots=True, eq=False)
class Storage:
    """Memory of one or more tensors."""

    n_bytes: int
    """Bytes asked for, not rounded."""
    category: Category
    """Purpose it is held for."""
    op: str = ""
    """Operator that made it, such as "aten.convolution"; empty for weights and inputs."""
    module: str = ""
    """Dotted path of the module that ran then, or the name of a weight; "" is the model itself."""
    line: str = ""
    """Line of the user's code, "file:line", where it is known."""
    stage: str = ""
    """Stage of the step, such as "forward"."""
    born: int = -1
    """Index of the event that allocates it."""
    died: int | None = None
    """Index of the event that frees it; None if it outlives the trace."""
    shape: tuple[int, ...] = ()
    """Shape of the tensor that it was first seen in."""
    dtype: str = ""
    """Dtype of that tensor, such as "float32"."""


class ReplayEvent(NamedTuple):
    """Event of a trace."""

    kind: Literal["alloc", "free", "call", "mark"]
    """A call is that of an operator which may need a workspace, after its result is allocated."""
    which: int
    """Index in `Trace.storages` for alloc and free, in `Trace.calls`, or in `Trace.marks`."""


class StageMark(NamedTuple):
    """Named moment: the end of a stage, or one that the user marked."""

    name: str
    event: int
    """Index of its event."""


class ModuleCall(NamedTuple):
    """Call of a module's forward."""

    module: str
    """Dotted path in the model."""
    kind: str
    """Class of the module."""
    first: int
    """Index of the first event inside."""
    end: int
    """Index of the first event after it."""
    stage: str
    """Stage of the step: "forward", or "backward" where the module is recomputed."""


@dataclass(frozen=True, slots=True)
class ReplayPeak:
    """Storages alive at one event, by default that of the peak."""

    n_bytes: int
    event: int
    """Index of the event."""
    stage: str
    """Stage of the event."""
    op: str
    """Operator that ran, if known."""
    module: str
    """Module that ran."""
    alive: tuple[Storage, ...]
    """Storages, largest first; workspaces are among them."""

    def by_category(self) -> dict[str, int]:
        """Bytes of every category, in the order of `CATEGORIES`."""
        sums: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
        for storage in self.alive:
            sums[storage.category] += round_to_granule(storage.n_bytes)
        return sums

    def by_module(self) -> dict[str, int]:
        """Bytes by module path, largest first."""
        sums: dict[str, int] = {}
        for storage in self.alive:
            n_bytes = round_to_granule(storage.n_bytes)
            sums[storage.module] = sums.get(storage.module, 0) + n_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))
