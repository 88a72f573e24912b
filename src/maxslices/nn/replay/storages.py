"""What a trace is made of: storages, events, marks, calls of modules, and a moment's account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Category = Literal[
    "input",
    "weights",
    "activations",
    "gradients",
    "optimizer state",
    "workspace",
    "temporary",
]
"""What memory is held for."""

CATEGORIES: tuple[Category, ...] = (
    "weights",
    "input",
    "activations",
    "gradients",
    "optimizer state",
    "workspace",
    "temporary",
)
"""In the order in which a step needs them."""

GRANULE_BYTES = 512
"""torch's allocator hands out multiples of this."""


def rounded(n_bytes: int) -> int:
    """Return what the allocator takes for a storage: a multiple of 512 bytes."""
    return -(-n_bytes // GRANULE_BYTES) * GRANULE_BYTES


@dataclass(slots=True, eq=False)
class Storage:
    """Memory of one or more tensors."""

    n_bytes: int
    """Bytes asked for, not rounded."""
    category: Category
    """What it is held for."""
    op: str = ""
    """Operator that made it, such as "aten.convolution"; empty for weights and inputs."""
    module: str = ""
    """Dotted path of the module at work then, or the name of a weight; "" is the model itself."""
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
    """One thing that happened."""

    kind: Literal["alloc", "free", "call", "mark"]
    """A call is an operator that may need a workspace, after its result is allocated."""
    which: int
    """Index in `Trace.storages` for alloc and free, of `Trace.calls`, of `Trace.marks`."""


class StageMark(NamedTuple):
    """A named moment: the end of a stage, or what the user marked."""

    name: str
    event: int
    """Index of its event: what came before has happened."""


class ModuleCall(NamedTuple):
    """One call of a module's forward."""

    module: str
    """Dotted path in the model."""
    kind: str
    """Its class."""
    first: int
    """Index of the first event inside."""
    end: int
    """Index of the first event after it."""
    stage: str
    """Stage of the step: "forward", or "backward" where it is computed again."""


@dataclass(frozen=True, slots=True)
class ReplayPeak:
    """What was alive when the most was."""

    n_bytes: int
    event: int
    """Index of the event that reached it."""
    stage: str
    """Stage in which it was reached."""
    op: str
    """Operator at work, if known."""
    module: str
    """Module at work."""
    alive: tuple[Storage, ...]
    """What was alive, largest first; workspaces among them."""

    def by_category(self) -> dict[str, int]:
        """Return bytes of each category, every one named, in the order of `CATEGORIES`."""
        sums: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
        for storage in self.alive:
            sums[storage.category] += rounded(storage.n_bytes)
        return sums

    def by_module(self, category: str | None = None) -> dict[str, int]:
        """Return bytes by module path, largest first; of one category, or of all."""
        sums: dict[str, int] = {}
        for storage in self.alive:
            if category in (None, storage.category):
                sums[storage.module] = sums.get(storage.module, 0) + rounded(storage.n_bytes)
        return dict(sorted(sums.items(), key=lambda item: -item[1]))
