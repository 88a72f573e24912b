"""Log of a replay: storages from allocation to release, and calls of operators, in order."""

from __future__ import annotations

import os
import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from ..nn_errors import TraceError
from .trace import Category, ReplayEvent, StageMark, Storage
from .workspaces import OperatorCall

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(__file__) + os.sep
_current_node = torch._C._current_autograd_node
_next_number = torch._C._autograd._get_sequence_nr


class Attribution:
    """Current module and line of the user's code, in the forward and the backward pass.

    In the backward pass they follow from the running autograd node. Nodes are numbered in the order
    in which the forward pass creates them.

    Parameters
    ----------
    lines : bool
        Whether to look up the user's lines.

    Attributes
    ----------
    path : list of str
        Dotted paths of the modules being called, the innermost last.
    names : dict
        Names of weights, by the `id` of the tensor.
    """

    def __init__(self, lines: bool) -> None:
        self._lines = lines
        self.path = [""]
        self.names: dict[int, str] = {}
        # Autograd nodes from _numbers[i] on belong to _contexts[i], a (module, line).
        self._numbers: list[int] = []
        self._contexts: list[tuple[str, str]] = []

    def context(self) -> tuple[str, str]:
        """Current module and line of the user's code."""
        node = _current_node()
        if node is None or len(self.path) > 1:  # the forward pass, or its recomputation
            context = (self.path[-1], user_line() if self._lines else "")
            if self._lines and torch.is_grad_enabled():
                self.remember(context)
            return context
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self.names.get(id(variable), ""), ""
        place = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._contexts[place] if place >= 0 else ("", "")

    def remember(self, context: tuple[str, str]) -> None:
        """Attribute all later autograd nodes to a (module, line)."""
        if not self._contexts or self._contexts[-1] != context:
            number = _next_number()
            if self._numbers and self._numbers[-1] == number:
                self._contexts[-1] = context
            else:
                self._numbers.append(number)
                self._contexts.append(context)


def user_line() -> str:
    """Line, as "file:line", of the innermost frame outside torch and this package."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _OWN, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def line_of(trace: TracebackType | None) -> str:
    """Line, as "file:line", of the innermost frame of the user's code in a traceback."""
    line = "a line"
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((_TORCH, _OWN, "<")):
            line = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


class AllocationLog:
    """Records storages with their purpose, and the events of their allocation and release.

    A storage is freed when its last tensor is deleted, which a weak reference reports.

    Parameters
    ----------
    lines : bool
        Whether to look up the user's line of each allocation.
    """

    def __init__(self, lines: bool) -> None:
        self.attribution = Attribution(lines)
        """Current module and line."""
        self.is_paused = False
        """Whether recording is paused."""
        self._storages: list[Storage] = []
        self._events: list[ReplayEvent] = []
        self._calls: list[OperatorCall] = []
        self._marks: list[StageMark] = []
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._index: dict[int, int] = {}
        self._notes: dict[str, None] = {}
        self._category: Category = "activations"
        self.stage_name = ""
        """Current stage of the step."""
        self._closed = False
        self.n_operators = 0
        """Number of operators called, including views."""
        self.n_in_python = 0
        """Number of these operators that a library defines in Python."""

    @property
    def n_events(self) -> int:
        """Number of events so far."""
        return len(self._events)

    @property
    def alive_bytes(self) -> int:
        """Bytes of all live storages."""
        return sum(self._storages[index].n_bytes for index in self._index.values())

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """Index of a tensor's storage in the trace, or None if it is not recorded."""
        return self._index.get(tensor.untyped_storage()._cdata)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the recording."""
        was, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = was

    def mark(self, name: str) -> None:
        """Name the current moment, for `Trace.bytes_at`."""
        self._marks.append(StageMark(name, len(self._events)))
        self._events.append(ReplayEvent("mark", len(self._marks) - 1))

    @contextmanager
    def stage(self, name: str, category: Category) -> Iterator[None]:
        """Set stage and category of the storages allocated inside, and mark the end."""
        before = self.stage_name, self._category
        self.stage_name, self._category = name, category
        try:
            yield
            self.mark(name)
        finally:
            self.stage_name, self._category = before

    def categorize(self, tensors: Iterable[Any], category: Category) -> None:
        """Change the category of the storages of tensors."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                index = self._index.get(tensor.untyped_storage()._cdata)
                if index is not None:
                    self._storages[index].category = category

    def note(self, text: str) -> None:
        """Record a remark on what the replay assumes."""
        self._notes[text] = None

    def add_result(self, tensor: torch.Tensor, op: str) -> None:
        """Count the storage of an operator's result, if it is new."""
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise TraceError(
                f"{op} returns a tensor of layout {layout}, which cannot be replayed. Omit "
                "sparse=True to get the estimate of dense tensors"
            )
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or storage.nbytes() == 0:
            return
        self._register(storage, key, tensor, self._category, op, *self.attribution.context())

    def add_calls(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Record calls of operators that may need workspaces, after allocating their results."""
        for kind, op, shapes, dtype, options, channels_last in calls:
            module, line = self.attribution.context()
            self._calls.append(
                OperatorCall(
                    kind, op, shapes, dtype, options, channels_last,
                    _current_node() is not None, module, line, self.stage_name,
                )
            )  # fmt: skip
            self._events.append(ReplayEvent("call", len(self._calls) - 1))

    def add_workspace(self, n_bytes: int, op: str) -> torch.Tensor:
        """Count memory of a kernel until the returned tensor is deleted."""
        tensor = torch.empty(n_bytes, dtype=torch.uint8, device="meta")
        storage = tensor.untyped_storage()
        context = self.attribution.context()
        self._register(storage, storage._cdata, tensor, "workspace", op, *context)
        return tensor

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Exclude the storage of a tensor that is counted elsewhere."""
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
        """Record the allocation of a storage, and detect its release."""
        index = len(self._storages)
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._storages.append(
            Storage(
                storage.nbytes(), category, op, module, line, self.stage_name, len(self._events),
                None, tuple(tensor.shape), dtype,
            )
        )  # fmt: skip
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
