"""Calls of modules, recorded by hooks on the copy of the model that is replayed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
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
"""Phrases in messages of torch where code asks for values."""


def translated(error: BaseException, failure: Failure | None) -> TraceError | None:
    """Error that names the user's line or module; None if the original is as clear."""
    if isinstance(error, DataDependentError):
        return None
    text = str(error)
    if not isinstance(error, NotImplementedError | RuntimeError) or not any(
        part in text for part in _NEEDS_DATA
    ):
        return _refused(error, failure)
    where = line_of(error.__traceback__)
    return DataDependentError(
        f"{where}: this line needs the values of a tensor, so what it allocates cannot be "
        f"known without running it ({text.splitlines()[0]})"
    )


def _refused(error: BaseException, failure: Failure | None) -> TraceError | None:
    """Error that names the module which refused its input."""
    if failure is None or not isinstance(error, RuntimeError | ValueError | IndexError):
        return None
    if failure.error_id != id(error) or any(failure.module.children()):
        return None
    given = " and ".join("x".join(map(str, shape)) or "a scalar" for shape in failure.shapes)
    where = f"{failure.path}: " if failure.path else ""
    return TraceError(f"{where}{failure.module} cannot take {given}: {str(error).splitlines()[0]}")


def module_flops(model: nn.Module, call: Callable[[], Any]) -> dict[str, dict[Any, int]]:
    """Operations of each module by operator, children included, while `call` runs.

    Keys are paths of modules; "" has all operations.
    """
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten._cudnn_rnn: recurrent.flops}
    )
    counter.mod_tracker = _CallTracker(model)  # type: ignore[assignment]
    with counter:
        call()
    counts = counter.get_flop_counts()
    return {path if path != "Global" else "": by_op for path, by_op in counts.items()}


class _CallTracker:
    """Modules inside a model that are being called.

    torch's own tracker has hooks on gradients too, which fail where a forward pass computes some.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooks: list[Any] = []
        self._running: list[str] = []

    @property
    def parents(self) -> set[str]:
        """Paths of the modules, and torch's name for all of them."""
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
    """Innermost module that raised.

    The error itself is not kept: the frames of its traceback hold tensors.
    """

    module: torch.nn.Module
    path: str
    """Dotted path in the model."""
    shapes: list[tuple[int, ...]]
    """Shapes of the module's input."""
    error_id: int
    """``id`` of the error."""


@dataclass(slots=True)
class ModuleCalls:
    """Records calls of modules and which module is running."""

    log: AllocationLog
    seen: list[ModuleCall] = field(default_factory=list)
    """Calls, in the order in which they began."""
    failure: Failure | None = None

    def watch(self, module: torch.nn.Module, name: str) -> None:
        """Record the calls of a module from now on."""
        log, attribution = self.log, self.log.attribution
        open_calls: list[int] = []

        def enter(_module: Any, _args: Any) -> None:
            attribution.path.append(name)
            open_calls.append(len(self.seen))
            self.seen.append(
                ModuleCall(name, type(_module).__name__, log.n_events, 0, log.stage_name)
            )
            if torch.is_grad_enabled():
                attribution.remember((name, ""))

        def leave(_module: Any, args: Any, _result: Any) -> None:
            error = sys.exc_info()[1]
            if error is not None and (self.failure is None or self.failure.error_id != id(error)):
                shapes = [tuple(t.shape) for t in tensors_in(args)]
                self.failure = Failure(_module, name, shapes, id(error))
            del error
            attribution.path.pop()
            place = open_calls.pop()
            self.seen[place] = self.seen[place]._replace(end=log.n_events)
            if torch.is_grad_enabled():
                attribution.remember((attribution.path[-1], ""))

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)
