"""Follows the storages of tensors without data, from birth to death."""

from __future__ import annotations

import os
import sys
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Literal, Self
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import rules
from .autocast import cuda_autocast
from .dispatch import DispatchMode, compiler_unloaded
from .errors import DataDependentError, TraceError
from .kernels import Capability, as_on_cuda
from .operators import COPIES, HANDLERS, IN_PARTS, calls_of, results_of, sole_counts
from .storages import Category, Event, Mark, ModuleCall, Storage
from .trace import Trace
from .twin import twin
from .work_areas import Call, WorkAreas

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(__file__) + os.sep
_META = torch.device("meta")
_current_node = torch._C._current_autograd_node
_next_number = torch._C._autograd._get_sequence_nr


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor that need not be there: shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False

    def empty(self) -> torch.Tensor:
        """Return a tensor like that without data."""
        return torch.empty(
            self.shape, dtype=self.dtype, device="meta", requires_grad=self.requires_grad
        )


class Replay:
    """Records what happens inside its context on tensors without data.

    Parameters
    ----------
    work_areas : WorkAreas, optional
        What operators take beside their results; by default a stated allowance.
    capability : Capability, optional
        Device that is replayed; by default compute capability 9.0.
    lines : bool
        Whether to look up the user's line of each allocation.

    Examples
    --------
    >>> import torch
    >>> with Replay(work_areas=WorkAreas.none()) as replay:
    ...     model = replay.model(torch.nn.Linear(1024, 1024, bias=False))
    ...     image = replay.input(Spec((4, 1024)))
    ...     with torch.no_grad():
    ...         result = model(image)
    ...     replay.mark("result")
    >>> replay.trace().bytes_at("result")
    4227072
    """

    def __init__(
        self,
        *,
        work_areas: WorkAreas | None = None,
        capability: Capability | None = None,
        lines: bool = True,
    ) -> None:
        self._work_areas = WorkAreas.allowance() if work_areas is None else work_areas
        self._capability = Capability() if capability is None else capability
        self._lines = lines
        self._storages: list[Storage] = []
        self._events: list[Event] = []
        self._calls: list[Call] = []
        self._marks: list[Mark] = []
        self._modules: list[ModuleCall | None] = []
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._index: dict[int, int] = {}
        self._notes: dict[str, None] = {}
        self._category: Category = "activations"
        self._stage = ""
        self._path: list[str] = [""]
        # What the autograd nodes made from a number on belong to: (module, line).
        self._numbers: list[int] = []
        self._contexts: list[tuple[str, str]] = []
        self._names: dict[int, str] = {}
        self._moved: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        self._twins: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = {}
        self._mode = _Follow(self)
        self._stack = ExitStack()
        self._began = 0.0
        self._duration_s = 0.0
        self._in_backward = False
        self._closed = False
        # The innermost module that raised: itself, its path, shapes of its input, id of the error.
        self._failed: tuple[torch.nn.Module, str, list[tuple[int, ...]], int] | None
        self._failed = None

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._stack.enter_context(compiler_unloaded())
        sole_counts()  # now, while nothing else is under way
        overrides = self._stack.enter_context(as_on_cuda(self._capability))
        self._mode.handlers = {**HANDLERS, **{op: _plain(f) for op, f in overrides.items()}}
        # One thread runs it all, as the order of events must be that of the calls.
        self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        self._stack.enter_context(_random_state_kept())
        self._stack.enter_context(cuda_autocast())
        if not torch.cuda.is_available():
            # device="cuda" is the device that is replayed: there is nothing to prepare.
            self._stack.enter_context(mock.patch.object(torch.cuda, "_lazy_init", _nothing))
        for name in ("to", "cuda"):
            own = self._moves(getattr(torch.nn.Module, name), name)
            self._stack.enter_context(mock.patch.object(torch.nn.Module, name, own))
        self._stack.enter_context(self._mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        self._stack.close()
        self._duration_s = time.perf_counter() - self._began
        self._closed = True
        if error is not None:
            clear = self._explained(error)
            if clear is not None:
                raise clear from error
        return False

    # -- what is replayed

    def model(self, model: torch.nn.Module, *, is_twin: bool = False) -> torch.nn.Module:
        """Return a copy of a model without data, whose weights are counted from now on.

        Parameters
        ----------
        model : torch.nn.Module
            The real one; it is not changed.
        is_twin : bool
            Whether it has no data already and may be used itself.
        """
        with self.paused():
            made = model if is_twin else twin(model)
        for path, module in made.named_modules():
            self._watch(module, path)
            # Module by module, as they are made: that is how they share segments.
            own = (*module.named_parameters(path, False), *module.named_buffers(path, False))
            for name, tensor in own:
                if tensor.device.type == "meta":
                    self._names.setdefault(id(tensor), name)
                    self._count(tensor, "weights", name)
        return made

    def input(self, value: Any) -> Any:
        """Return an input without data, counted from now on.

        Parameters
        ----------
        value : tensor, Spec, or any nesting of them in tuples, lists and dicts
            Real tensors are not read; other objects are passed on.
        """

        def convert(item: Any) -> Any:
            if isinstance(item, Spec):
                made = item.empty()
            elif isinstance(item, torch.Tensor):
                made = self._without_data(item)
            else:
                return item
            self._count(made, "input", "")
            return made

        with self.paused():
            return tree_map(convert, value)

    def uncounted(self, value: Any) -> Any:
        """Return tensors without data whose memory is somebody else's account.

        Parameters
        ----------
        value : tensor, Spec, or any nesting of them
            As for `input`.
        """

        def convert(item: Any) -> Any:
            if not isinstance(item, Spec | torch.Tensor):
                return item
            made = item.empty() if isinstance(item, Spec) else self._without_data(item)
            storage = made.untyped_storage()
            key = storage._cdata
            self._alive[key] = weakref.ref(storage, lambda _: self._alive.pop(key, None))
            return made

        with self.paused():
            return tree_map(convert, value)

    def mark(self, name: str) -> None:
        """Name this moment: `Trace.bytes_at` returns the bytes in use here."""
        self._marks.append(Mark(name, len(self._events)))
        self._events.append(Event("mark", len(self._marks) - 1))

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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing of what is done inside."""
        was, self._mode.paused = self._mode.paused, True
        try:
            yield
        finally:
            self._mode.paused = was

    def backward(self, loss: torch.Tensor) -> None:
        """Run ``loss.backward()`` as a stage."""
        with self.stage("backward", "temporary"):
            loss.backward()

    def categorize(self, tensors: Iterable[Any], category: Category) -> None:
        """Say what the storages of tensors are held for, after the fact."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                index = self._index.get(tensor.untyped_storage()._cdata)
                if index is not None:
                    self._storages[index].category = category

    def trace(self) -> Trace:
        """Return what was recorded so far."""
        storages = tuple(self._storages)
        return Trace(
            storages,
            tuple(self._calls),
            tuple(self._marks),
            tuple(self._events),
            tuple(call for call in self._modules if call is not None),
            self._work_areas,
            self._duration_s or time.perf_counter() - self._began,
            tuple(self._notes),
        )

    def note(self, text: str) -> None:
        """Remember what could not be followed to the letter."""
        self._notes[text] = None

    # -- what the dispatch mode reports

    def follow(self, tensor: torch.Tensor, op: str) -> None:
        """Count the storage of an operator's result, if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        n_bytes = storage.nbytes()
        if n_bytes == 0:
            return
        module, line = self._context()
        made = Storage(
            n_bytes,
            self._category,
            op,
            module,
            line,
            self._stage,
            len(self._events),
            None,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
        )
        self._register(storage, key, made)

    def called(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Note operators that may need work areas, now that their results are allocated."""
        for kind, op, shapes, dtype, options, channels_last in calls:
            module, line = self._context()
            self._calls.append(
                Call(
                    kind, op, shapes, dtype, options, channels_last,
                    _current_node() is not None, module, line, self._stage,
                )
            )  # fmt: skip
            self._events.append(Event("call", len(self._calls) - 1))

    def _register(self, storage: Any, key: int, made: Storage) -> None:
        index = len(self._storages)
        self._storages.append(made)
        self._events.append(Event("alloc", index))
        self._index[key] = index
        self._alive[key] = weakref.ref(storage, lambda _: self._died(key, index))

    def _died(self, key: int, index: int) -> None:
        if self._closed:  # what outlives the replay is not part of it
            return
        self._alive.pop(key, None)
        self._index.pop(key, None)
        self._storages[index].died = len(self._events)
        self._events.append(Event("free", index))

    def _count(self, tensor: torch.Tensor, category: Category, name: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or storage.nbytes() == 0:
            return
        made = Storage(
            storage.nbytes(),
            category,
            "",
            name,
            "",
            self._stage,
            len(self._events),
            None,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
        )
        self._register(storage, key, made)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a real tensor without data, as if it had been on the device from here on."""
        key = tensor.untyped_storage()._cdata
        known = self._moved.get((key, tensor.storage_offset(), tensor.shape))
        if known is None:
            with self.paused():
                made = self._without_data(tensor)
            self._count(made, "weights", "")
            # The real one is kept too, so that nothing else gets its address.
            known = self._moved[(key, tensor.storage_offset(), tensor.shape)] = made, tensor
            self.note(
                f"{_user_line() or 'a function'} uses a tensor on the host together with the "
                "data: counted as if it were on the device"
            )
        return known[0]

    def _without_data(self, tensor: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        return made.requires_grad_(tensor.requires_grad)

    def _moves(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return `Module.to` or `Module.cuda` that leaves a real module where it is.

        What goes to the device that is replayed is a copy without data, once for a module.
        """

        def move(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._mode.paused:
                return real(module, *args, **kwargs)
            if name == "cuda":
                device, dtype = torch.device("cuda"), None
            else:
                device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
            tensors = (*module.parameters(), *module.buffers())
            if device is None or device.type not in ("meta", "cuda"):
                return real(module, *args, **kwargs)
            if all(t.device.type == "meta" for t in tensors):
                return module if dtype is None else real(module, dtype)
            known = self._twins.get(id(module))
            if known is None:
                known = self._twins[id(module)] = self.model(module), module
            return known[0] if dtype is None else real(known[0], dtype)

        return move

    # -- where it happens

    def _context(self) -> tuple[str, str]:
        """Return the module and the user's line that are at work."""
        node = _current_node()
        if node is None or len(self._path) > 1:  # the forward, or computing it again
            context = (self._path[-1], _user_line() if self._lines else "")
            if self._lines and torch.is_grad_enabled():
                self._remember(context)
            return context
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self._names.get(id(variable), ""), ""
        place = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._contexts[place] if place >= 0 else ("", "")

    def _remember(self, context: tuple[str, str]) -> None:
        if not self._contexts or self._contexts[-1] != context:
            number = _next_number()
            if self._numbers and self._numbers[-1] == number:
                self._contexts[-1] = context
            else:
                self._numbers.append(number)
                self._contexts.append(context)

    def _watch(self, module: torch.nn.Module, name: str) -> None:
        open_calls: list[int] = []

        def enter(_module: Any, _args: Any) -> None:
            self._path.append(name)
            open_calls.append(len(self._modules))
            self._modules.append(
                ModuleCall(name, type(_module).__name__, len(self._events), 0, self._stage)
            )
            if torch.is_grad_enabled():
                self._remember((name, ""))

        def leave(_module: Any, args: Any, _result: Any) -> None:
            error = sys.exc_info()[1]
            # Of the error itself nothing is kept: its frames hold tensors.
            if error is not None and (self._failed is None or self._failed[3] != id(error)):
                shapes = [tuple(t.shape) for t in tree_leaves(args) if torch.is_tensor(t)]
                self._failed = _module, name, shapes, id(error)
            del error
            self._path.pop()
            place = open_calls.pop()
            began = self._modules[place]
            if began is not None:
                self._modules[place] = began._replace(end=len(self._events))
            if torch.is_grad_enabled():
                self._remember((self._path[-1], ""))

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)

    def _explained(self, error: BaseException) -> TraceError | None:
        """Return an error that names the user's line, if the code needs data."""
        if isinstance(error, DataDependentError):
            return None
        text = str(error)
        needs_data = isinstance(error, NotImplementedError | RuntimeError) and any(
            part in text
            for part in (
                "cannot be called on meta tensors",
                "attempted to run this operator with Meta tensors",
                "data-independent implementation",
                "Cannot copy out of meta tensor",
                "is not supported for meta",
                "meta tensors don't support",
                ".numpy() is not supported for tensor subclasses",
            )
        )
        if not needs_data:
            return self._refused(error)
        where = _line_of(error.__traceback__)
        return DataDependentError(
            f"{where}: this line needs the values of a tensor, so what it allocates cannot be "
            f"known without running it ({text.splitlines()[0]})"
        )

    def _refused(self, error: BaseException) -> TraceError | None:
        """Return an error that names the module that could not take its input."""
        if self._failed is None or not isinstance(error, RuntimeError | ValueError | IndexError):
            return None
        module, name, shapes, first = self._failed
        if first != id(error) or any(module.children()):
            return None
        given = " and ".join("x".join(map(str, shape)) or "a scalar" for shape in shapes)
        where = f"{name}: " if name else ""
        return TraceError(f"{where}{module} cannot take {given}: {str(error).splitlines()[0]}")


class _Follow(DispatchMode):
    """Tells a `Replay` what every operator makes."""

    def __init__(self, owner: Replay) -> None:
        super().__init__()
        self.owner = owner
        self.handlers: dict[Any, Callable[..., Any]] = {}
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            kwargs = {**kwargs, "device": _META}
        args = self._together(func, args)
        handler = self.handlers.get(func)
        if handler is None:
            made = rules.call(func, args, kwargs)
        else:
            made = handler(self.owner, func, args, kwargs)
        owner, name = self.owner, func.name()
        calls = calls_of(func, args, made) or []
        if isinstance(made, torch.Tensor):
            if made.is_meta:
                owner.follow(made, name)
        elif isinstance(made, tuple | list):
            waiting = iter(calls) if func in IN_PARTS else iter(())
            for item in results_of(func, tuple(made)):
                for leaf in tree_leaves(item) if isinstance(item, list | tuple) else (item,):
                    if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                        owner.follow(leaf, name)
                        owner.called(islice(waiting, 1))
            if func in IN_PARTS:
                return made
        owner.called(calls)
        return made

    def _together(self, func: Any, args: Any) -> Any:
        """Return operands, none of them real where others have no data."""
        meta = real = False
        for item in args:
            if isinstance(item, torch.Tensor):
                if item.is_meta:
                    meta = True
                elif item.dim():
                    real = True
            elif isinstance(item, list | tuple) and item and isinstance(item[0], torch.Tensor):
                meta = meta or any(t.is_meta for t in item if t is not None)
                real = real or any(t.dim() and not t.is_meta for t in item if t is not None)
        if not (meta and real) or func in COPIES:
            return args
        return tree_map(
            lambda item: (
                self.owner.moved(item)
                if isinstance(item, torch.Tensor) and item.dim() and not item.is_meta
                else item
            ),
            args,
        )


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that calls a function in place of an operator."""

    def handler(owner: Replay, func: Any, args: Any, kwargs: Any) -> Any:
        with owner._mode:  # its parts are followed one by one
            return function(*args, **kwargs)

    return handler


def _nothing() -> None:
    """Do nothing."""


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Leave the CPU's random numbers as they were."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _user_line() -> str:
    """Return "file:line" of the innermost frame that is neither torch's nor this package's."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _OWN, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _line_of(trace: TracebackType | None) -> str:
    """Return "file:line" of the innermost frame of the user's code in a traceback."""
    found = "a line"
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((_TORCH, _OWN, "<")):
            found = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
