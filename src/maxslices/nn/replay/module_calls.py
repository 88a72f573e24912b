"""Calls of modules, recorded by hooks on the replayed copy of the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.flop_counter import FlopCounterMode

from ..nn_errors import DataDependentError, TraceError
from . import recurrent
from .allocation_log import AllocationLog, line_of
from .nested import tensors_in
from .trace import ModuleCall

_NEEDS_DATA = (
    "cannot be called on meta tensors",
    "attempted to run this operator with Meta tensors",
    "data-independent implementation",
    "Cannot copy out of meta tensor",
    "is not supported for meta",
    "meta tensors don't support",
    ".numpy() is not supported for tensor subclasses",
)
"""Phrases in torch's messages about code that reads values."""


def translated(error: BaseException, failure: Failure | None) -> TraceError | None:
    """Error that names the user's line or module, or None if the original is clear."""
    if isinstance(error, DataDependentError):
        return None
    text = str(error)
    if not isinstance(error, NotImplementedError | RuntimeError) or not any(
        part in text for part in _NEEDS_DATA
    ):
        return _refused(error, failure)
    where = line_of(error.__traceback__)
    return DataDependentError(
        f"{where}: this line needs the values of a tensor, so its memory cannot be predicted "
        f"({text.splitlines()[0]})"
    )


def _refused(error: BaseException, failure: Failure | None) -> TraceError | None:
    """Error that names the module that refused its input."""
    if failure is None or not isinstance(error, RuntimeError | ValueError | IndexError):
        return None
    if failure.error_id != id(error) or any(failure.module.children()):
        return None
    shapes = " and ".join("x".join(map(str, shape)) or "a scalar" for shape in failure.shapes)
    where = f"{failure.path}: " if failure.path else ""
    return TraceError(f"{where}{failure.module} cannot take {shapes}: {str(error).splitlines()[0]}")


def module_flops(model: nn.Module, call: Callable[[], Any]) -> dict[str, dict[Any, int]]:
    """Floating-point operations of each module by operator, including children, during `call`.

    Keys are paths of modules. The key "" has all operations, and always exists.
    """
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten._cudnn_rnn: recurrent.flops}
    )
    counter.mod_tracker = _CallTracker(model)  # type: ignore[assignment]
    with counter:
        call()
    counts = {"Global": {}, **counter.get_flop_counts()}  # torch omits modules without any
    return {path if path != "Global" else "": by_op for path, by_op in counts.items()}


class _CallTracker:
    """Modules inside a model that are being called.

    torch's own tracker also sets hooks on gradients, which fail if a forward pass computes some.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooks: list[Any] = []
        self._running: list[str] = []

    @property
    def parents(self) -> set[str]:
        """Paths of the modules, and torch's name for the whole model."""
        return {"Global", *self._running}

    def __enter__(self) -> _CallTracker:
        for path, module in self._model.named_modules():
            if path:
                self._hooks += [
                    module.register_forward_pre_hook(self._entered(path)),
                    module.register_forward_hook(self._left, always_call=True),
                ]
        return self

    def __exit__(self, *_error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _entered(self, path: str) -> Callable[..., None]:
        return lambda *_call: self._running.append(path)

    def _left(self, *_call: Any) -> None:
        self._running.pop()


class Failure(NamedTuple):
    """Innermost module that raised an error.

    The error itself is not stored, because the frames of its traceback hold tensors.
    """

    module: torch.nn.Module
    path: str
    """Dotted path in the model."""
    shapes: list[tuple[int, ...]]
    """Shapes of the module's input."""
    error_id: int
    """``id`` of the error."""


class ModuleCalls:
    """Records calls of modules and the module that is running.

    The hooks are global, since layers with hooks of their own do not use fused operators.
    """

    def __init__(self, log: AllocationLog) -> None:
        self._log = log
        self.seen: list[ModuleCall] = []
        """Calls, in the order in which they began."""
        self.failure: Failure | None = None
        self._paths: dict[int, str] = {}
        self._open: list[int] = []

    def watch(self, module: nn.Module, path: str) -> None:
        """Record all later calls of a module."""
        self._paths[id(module)] = path

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Record calls of watched modules."""
        hooks = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        path = self._paths.get(id(module))
        if path is None:
            return
        self._log.attribution.path.append(path)
        self._open.append(len(self.seen))
        self.seen.append(
            ModuleCall(path, type(module).__name__, self._log.n_events, 0, self._log.stage_name)
        )
        if torch.is_grad_enabled():
            self._log.attribution.remember((path, ""))

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        path = self._paths.get(id(module))
        if path is None:
            return
        error = sys.exc_info()[1]
        if error is not None and (self.failure is None or self.failure.error_id != id(error)):
            shapes = [tuple(t.shape) for t in tensors_in(args)]
            self.failure = Failure(module, path, shapes, id(error))
        del error
        attribution = self._log.attribution
        attribution.path.pop()
        place = self._open.pop()
        self.seen[place] = self.seen[place]._replace(end=self._log.n_events)
        if torch.is_grad_enabled():
            attribution.remember((attribution.path[-1], ""))
