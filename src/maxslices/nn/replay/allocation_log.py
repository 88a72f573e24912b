"""The account of a replay: storages from birth to death, and calls of operators, in order."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .attribution import Places
from .storages import Category, ReplayEvent, StageMark, Storage
from .workspaces import OperatorCall

_current_node = torch._C._current_autograd_node


class Account:
    """Notes which storages are made, held and freed.

    Parameters
    ----------
    lines : bool
        Whether to look up the user's line of each allocation.
    """

    def __init__(self, lines: bool) -> None:
        self.places = Places(lines)
        """Where it happens."""
        self._storages: list[Storage] = []
        self._events: list[ReplayEvent] = []
        self._calls: list[OperatorCall] = []
        self._marks: list[StageMark] = []
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._index: dict[int, int] = {}
        self._notes: dict[str, None] = {}
        self._category: Category = "activations"
        self._stage = ""
        self._closed = False
        self.n_operators = 0
        """Operators that were called, views included."""
        self.n_in_python = 0
        """Those of them that a library defines in Python."""

    @property
    def n_events(self) -> int:
        """How much has happened."""
        return len(self._events)

    @property
    def stage_name(self) -> str:
        """Stage of the step that is under way."""
        return self._stage

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """Return which storage is a tensor's; None if it is not followed."""
        return self._index.get(tensor.untyped_storage()._cdata)

    def mark(self, name: str) -> None:
        """Name this moment: `Trace.bytes_at` returns the bytes in use here."""
        self._marks.append(StageMark(name, len(self._events)))
        self._events.append(ReplayEvent("mark", len(self._marks) - 1))

    @contextmanager
    def stage(self, name: str, category: Category) -> Iterator[None]:
        """Say what the storages made inside are held for; its end is marked by its name."""
        before = self._stage, self._category
        self._stage, self._category = name, category
        try:
            yield
            self.mark(name)
        finally:
            self._stage, self._category = before

    def categorize(self, tensors: Iterable[Any], category: Category) -> None:
        """Say what the storages of tensors are held for, after the fact."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                index = self._index.get(tensor.untyped_storage()._cdata)
                if index is not None:
                    self._storages[index].category = category

    def note(self, text: str) -> None:
        """Remember what could not be followed to the letter."""
        self._notes[text] = None

    def follow(self, tensor: torch.Tensor, op: str) -> None:
        """Count the storage of an operator's result, if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        if storage.nbytes() == 0:
            return
        self._register(storage, key, tensor, self._category, op, *self.places.context())

    def called(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Note operators that may need workspaces, now that their results are allocated."""
        for kind, op, shapes, dtype, options, channels_last in calls:
            module, line = self.places.context()
            self._calls.append(
                OperatorCall(
                    kind, op, shapes, dtype, options, channels_last,
                    _current_node() is not None, module, line, self._stage,
                )
            )  # fmt: skip
            self._events.append(ReplayEvent("call", len(self._calls) - 1))

    def temporary(self, n_bytes: int, op: str) -> torch.Tensor:
        """Count memory that a kernel takes while the tensor that is returned is alive."""
        made = torch.empty(n_bytes, dtype=torch.uint8, device="meta")
        storage = made.untyped_storage()
        self._register(storage, storage._cdata, made, "workspace", op, *self.places.context())
        return made

    def uncount(self, tensor: torch.Tensor) -> None:
        """Leave a storage out: its memory is somebody else's account."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._alive[key] = weakref.ref(storage, lambda _: self._alive.pop(key, None))

    def _register(
        self,
        storage: Any,
        key: int,
        tensor: torch.Tensor,
        category: Category,
        op: str,
        module: str,
        line: str,
    ) -> None:
        """Begin to follow a storage."""
        index = len(self._storages)
        made = Storage(
            storage.nbytes(),
            category,
            op,
            module,
            line,
            self._stage,
            len(self._events),
            None,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
        )
        self._storages.append(made)
        self._events.append(ReplayEvent("alloc", index))
        self._index[key] = index
        self._alive[key] = weakref.ref(storage, lambda _: self._died(key, index))

    def _died(self, key: int, index: int) -> None:
        if self._closed:  # what outlives the replay is not part of it
            return
        self._alive.pop(key, None)
        self._index.pop(key, None)
        self._storages[index].died = len(self._events)
        self._events.append(ReplayEvent("free", index))

    def count(self, tensor: torch.Tensor, category: Category, name: str) -> None:
        """Count the storage of a weight or an input, if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or storage.nbytes() == 0:
            return
        self._register(storage, key, tensor, category, "", name, "")
