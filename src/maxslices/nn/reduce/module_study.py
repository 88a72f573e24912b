"""Study of the unreduced step: one replay with the inputs, results and events of each module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..replay import Replay, Trace, Workspaces
from ..replay.nested import tensors_in
from ..step.model_step import ModelStep
from .inplace import set_in_place
from .module_ranges import children_of, ranges_of


@dataclass(slots=True)
class ForwardCall:
    """One forward call of a module or of a range of layers."""

    path: str
    """Dotted path of the module, or path of the range."""
    first: int
    """Index of the first event inside."""
    end: int
    """Index of the first event after it."""
    inputs: tuple[int, ...]
    """Storages of its tensor arguments."""
    outputs: tuple[int, ...]
    changes_input: bool
    """True if it writes to an argument."""
    n_first: int
    """Length of the first axis of its first argument; 0 if that is not a tensor."""
    shape: tuple[int, ...] = ()
    """Shape of its only argument; () unless it has one tensor argument and one tensor result."""
    n_operators: int = 0
    """Number of operators in the forward pass."""
    n_in_python: int = 0
    """Number of those operators that a library defines in Python."""


@dataclass(slots=True)
class StepStudy:
    """Replay of one unreduced step without an optimizer, with the calls of its modules."""

    trace: Trace
    calls: list[ForwardCall]
    """Forward calls in the order of their ends, followed by those of ranges."""
    begins: dict[str, int]
    """First event of the backward pass of each module, its children included."""
    usage: npt.NDArray[np.int64]
    """Bytes in use at each event."""
    leaves: frozenset[str]
    """Modules without children."""

    def with_trace(self, trace: Trace) -> StepStudy:
        """Study of the same events with other workspaces."""
        return replace(self, trace=trace, usage=np.array(trace.in_use_bytes, np.int64))

    @property
    def backward_start(self) -> int:
        """Event at which the backward pass begins, the end of the loss."""
        return next(m.event for m in self.trace.marks if m.name == "loss")


class _CallWatcher:
    """Records the calls of a replayed model's modules."""

    def __init__(self) -> None:
        self.calls: list[ForwardCall] = []
        self._open: list[tuple[int, tuple[int, ...], tuple[int, ...], int, int]] = []

    def watch(self, record: Replay, model: nn.Module) -> None:
        """Register hooks on all modules of a model."""
        self.record = record
        for path, module in model.named_modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(partial(self._leave, path), with_kwargs=True)

    def _enter(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return  # inside of torch.func nothing is rewritten
        given, record = (args, kwargs), self.record
        self._open.append(
            (record.n_events, self._indexes(given), _versions(given),
             record.n_operators, record.n_in_python)
        )  # fmt: skip

    def _leave(self, path: str, _module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return
        first, given, before, n_operators, n_in_python = self._open.pop()
        record = self.record
        changed = _versions((args, kwargs)) != before
        n_first = next((len(a) for a in args if torch.is_tensor(a) and a.dim()), 0)
        one = len(args) == 1 and not kwargs and all(map(torch.is_tensor, (*args, made)))
        self.calls.append(
            ForwardCall(
                path, first, record.n_events, given, self._indexes(made),
                changed, n_first, tuple(args[0].shape) if one else (),
                record.n_operators - n_operators, record.n_in_python - n_in_python,
            )
        )  # fmt: skip

    def _indexes(self, value: Any) -> tuple[int, ...]:
        found = [self.record.index_of(t) for t in tensors_in(value)]
        return tuple(dict.fromkeys(i for i in found if i is not None))


def _versions(value: Any) -> tuple[int, ...]:
    return tuple(t._version for t in tensors_in(value))


def study_step(
    step: ModelStep, inputs: Sequence[Any], workspaces: Workspaces, in_place: Sequence[str] = ()
) -> StepStudy:
    """Replay one training step without its optimizer, and record the calls of its modules."""
    watcher = _CallWatcher()
    trace = replace(step, optimizer=None).trace(
        inputs,
        workspaces,
        steps=1,
        change=lambda model: set_in_place(model, in_place),
        watch=watcher.watch,
    )
    model = step.model
    # What a model recomputes by itself is no call of the forward pass.
    end = next(mark.event for mark in trace.marks if mark.name == "forward")
    seen = [call for call in watcher.calls if call.end <= end]
    leaves = frozenset(path for path, m in model.named_modules() if not any(m.children()))
    study = StepStudy(trace, seen, {}, np.array(trace.in_use_bytes, np.int64), leaves)
    study.begins = _begins(study)
    _add_ranges(study, model)
    return study


def _add_ranges(study: StepStudy, model: nn.Module) -> None:
    calls: dict[str, list[ForwardCall]] = {}
    for call in study.calls:
        calls.setdefault(call.path, []).append(call)
    modules = dict(model.named_modules())
    for run in ranges_of(model):
        inside = [calls.get(path, []) for path in children_of(run, modules)]
        if any(len(each) != 1 for each in inside):
            continue
        one, last = inside[0][0], inside[-1][0]
        study.calls.append(
            ForwardCall(run.path, one.first, last.end, one.inputs, last.outputs,
                 one.changes_input, one.n_first, one.shape if last.shape else (),
                 sum(each[0].n_operators for each in inside),
                 sum(each[0].n_in_python for each in inside))
        )  # fmt: skip
        begins = [study.begins[each[0].path] for each in inside if each[0].path in study.begins]
        if begins:
            study.begins[run.path] = min(begins)


def _begins(study: StepStudy) -> dict[str, int]:
    trace, start = study.trace, study.backward_start
    paths = {call.path for call in study.calls}
    begins: dict[str, int] = {}
    for event in range(start, len(trace.events)):
        kind, index = trace.events[event]
        if kind in ("alloc", "free"):
            path = trace.storages[index].module
            if kind == "alloc" and trace.storages[index].category == "gradients":
                path = path.rpartition(".")[0] if path not in paths else path
        elif kind == "call":
            path = trace.calls[index].module
        else:
            continue
        if kind == "free" and trace.storages[index].category != "activations":
            continue
        while path:
            begins.setdefault(path, event)
            path = path.rpartition(".")[0]
    return begins
