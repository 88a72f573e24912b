"""Log of a replay: storages from allocation to release, and calls of operators, in order."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .attribution import Attribution
from .replay_errors import TraceError
from .storages import Category, ReplayEvent, StageMark, Storage
from .workspaces import OperatorCall

_current_node = torch._C._current_autograd_node


class AllocationLog:
    """Records which storages are allocated, for what, and when they are freed.

    A storage is freed when the last tensor that uses it goes: a weak reference sees that.

    Parameters
    ----------
    lines : bool
        Whether to look up the user's line of each allocation.
    """

    def __init__(self, lines: bool) -> None:
        self.attribution = Attribution(lines)
        """Module and line that run."""
        self.is_paused = False
        """Whether nothing is recorded now."""
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
        """How many of these a library defines in Python."""

    @property
    def n_events(self) -> int:
        """Number of events so far."""
        return len(self._events)

    @property
    def stage_name(self) -> str:
        """Stage of the step that runs."""
        return self._stage

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """Index of a tensor's storage in the trace; None if it is not recorded."""
        return self._index.get(tensor.untyped_storage()._cdata)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside."""
        was, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = was

    def mark(self, name: str) -> None:
        """Name this moment: `Trace.bytes_at` returns the bytes in use here."""
        self._marks.append(StageMark(name, len(self._events)))
        self._events.append(ReplayEvent("mark", len(self._marks) - 1))

    @contextmanager
    def stage(self, name: str, category: Category) -> Iterator[None]:
        """Give the storages allocated inside a stage and a category; mark the end by its name."""
        before = self._stage, self._category
        self._stage, self._category = name, category
        try:
            yield
            self.mark(name)
        finally:
            self._stage, self._category = before

    def categorize(self, tensors: Iterable[Any], category: Category) -> None:
        """Set the category of the storages of tensors afterwards."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                index = self._index.get(tensor.untyped_storage()._cdata)
                if index is not None:
                    self._storages[index].category = category

    def note(self, text: str) -> None:
        """Record what is not replayed exactly."""
        self._notes[text] = None

    def add_result(self, tensor: torch.Tensor, op: str) -> None:
        """Count the storage of an operator's result, if it is new."""
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise TraceError(
                f"{op} makes a tensor of layout {layout}, whose memory is not followed: leave "
                "sparse=True out, and the estimate is that of dense tensors"
            )
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        if storage.nbytes() == 0:
            return
        self._register(storage, key, tensor, self._category, op, *self.attribution.context())

    def add_calls(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Record operators that may need workspaces, once their results are allocated."""
        for kind, op, shapes, dtype, options, channels_last in calls:
            module, line = self.attribution.context()
            self._calls.append(
                OperatorCall(
                    kind, op, shapes, dtype, options, channels_last,
                    _current_node() is not None, module, line, self._stage,
                )
            )  # fmt: skip
            self._events.append(ReplayEvent("call", len(self._calls) - 1))

    def add_workspace(self, n_bytes: int, op: str) -> torch.Tensor:
        """Count memory that a kernel takes for as long as the returned tensor is alive."""
        made = torch.empty(n_bytes, dtype=torch.uint8, device="meta")
        storage = made.untyped_storage()
        self._register(storage, storage._cdata, made, "workspace", op, *self.attribution.context())
        return made

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Never count the storage of a tensor: something else accounts for it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._alive[key] = weakref.ref(storage, lambda _: self._alive.pop(key, None))

    def count(self, tensor: torch.Tensor, category: Category, name: str) -> None:
        """Count the storage of a weight or an input, if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or storage.nbytes() == 0:
            return
        self._register(storage, key, tensor, category, "", name, "")

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
        """Record the allocation of a storage, and watch for its release."""
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
        if self._closed:  # storages that outlive the replay stay allocated in the trace
            return
        self._alive.pop(key, None)
        self._index.pop(key, None)
        self._storages[index].died = len(self._events)
        self._events.append(ReplayEvent("free", index))
