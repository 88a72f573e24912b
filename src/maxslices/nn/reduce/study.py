"""Study of the unreduced step: one replay with the inputs, results and events of each module.

A rewrite has the path of a module, or of a range of children of an ``nn.Sequential``. A range is
written as a Python slice: "features[3:6]", or "[3:6]" of the model itself. Consecutive layers that
are not in a module of their own can thus be rewritten together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..replay import Replay, Trace, Workspaces
from ..replay.nested import tensors_in
from ..step.model_step import ModelStep

EXPENSIVE_LAYERS = (nn.modules.conv._ConvNd, nn.Linear, nn.Bilinear, nn.MultiheadAttention)
"""Convolutions and matrix products, with which ranges begin."""
RANGE_LENGTHS = (1, 2, 3, 4, 6, 8)
"""Lengths of ranges, in groups of layers that begin with an expensive one."""

_RUN = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


class ModuleRange(NamedTuple):
    """Consecutive children of a Sequential."""

    parent: str
    first: int
    end: int

    @property
    def path(self) -> str:
        """Path of the range, such as "features[3:6]"."""
        return f"{self.parent}[{self.first}:{self.end}]"


def range_at(path: str) -> ModuleRange | None:
    """Range that a path names; None if it names a module."""
    match = _RUN.fullmatch(path)
    return ModuleRange(match[1], int(match[2]), int(match[3])) if match else None


def children_of(run: ModuleRange, modules: Mapping[str, nn.Module]) -> list[str]:
    """Paths of a range's modules.

    Raises
    ------
    KeyError
        If the range does not exist.
    """
    parent = modules[run.parent]
    names = list(parent._modules)
    if not is_plain(parent) or not 0 <= run.first < run.end <= len(names):
        raise KeyError(f"{run.path}: {run.parent or 'the model'} has no such range of layers")
    return [f"{run.parent}.{name}".removeprefix(".") for name in names[run.first : run.end]]


def is_plain(module: nn.Module) -> bool:
    """True if a module only calls its children one after the other."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def modules_and_ranges(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by path, and each range of `ranges_of` as a Sequential of the same children."""
    modules = dict(model.named_modules())
    for run in ranges_of(model):
        modules[run.path] = nn.Sequential(*(modules[p] for p in children_of(run, modules)))
    return modules


def ranges_of(model: nn.Module) -> list[ModuleRange]:
    """Ranges that are worth a rewrite.

    A range consists of groups. A group is a convolution or product, or a module that contains one,
    and the layers up to the next group.
    """
    ranges: list[ModuleRange] = []
    for path, module in model.named_modules():
        if not is_plain(module):
            continue
        children = list(module.children())
        if len(children) < len(module._modules):
            continue  # some children are None, or the same module
        starts = [i for i, child in enumerate(children) if _is_expensive(child)]
        if not starts:
            continue
        edges = [0, *starts[1:], len(children)]
        for first in range(len(edges) - 1):
            for length in RANGE_LENGTHS:
                if first + length >= len(edges):
                    break
                run = ModuleRange(path, edges[first], edges[first + length])
                if 1 < run.end - run.first < len(children):
                    ranges.append(run)
    return [*dict.fromkeys(ranges)]


def _is_expensive(module: nn.Module) -> bool:
    return any(isinstance(each, EXPENSIVE_LAYERS) for each in module.modules())


class ModuleOrder:
    """Order of a model's modules, in which each module or range is an interval."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules())
        paths = list(self.modules)  # parents come before their children
        self._stretch: dict[str, tuple[int, int]] = {}
        for index, path in enumerate(paths):
            end = index + 1
            while end < len(paths) and (not path or paths[end].startswith(path + ".")):
                end += 1
            self._stretch[path] = (index, end)

    def stretch(self, path: str) -> tuple[int, int]:
        """Indices of the first module of a module or range, and of the one after its last."""
        if path not in self._stretch:
            run = range_at(path)
            if run is None:
                raise KeyError(path)
            inside = children_of(run, self.modules)
            ends = self._stretch[inside[0]][0], self._stretch[inside[-1]][1]
            self._stretch[path] = ends
        return self._stretch[path]

    def modules_of(self, path: str) -> list[str]:
        """Path of a module, or paths of the modules in a range."""
        run = range_at(path)
        return [path] if path in self.modules or run is None else children_of(run, self.modules)

    def is_inside(self, inner: str, outer: str) -> bool:
        """True if a module or range is a proper part of another."""
        (a, b), (c, d) = self.stretch(inner), self.stretch(outer)
        return c <= a and b <= d and b - a < d - c


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
    n_operators: int = 0
    """Number of operators in the forward pass."""
    n_in_python: int = 0
    """Number of those operators that a library defines in Python."""


@dataclass(slots=True)
class StepStudy:
    """Replay of one unreduced step without an optimizer, with the calls of its modules."""

    trace: Trace
    calls: list[ForwardCall]
    """Forward calls of modules in the order of their ends, followed by calls of ranges."""
    begins: dict[str, int]
    """First event of the backward pass of each module, its children included."""
    usage: npt.NDArray[np.int64]
    """Bytes in use at each event."""
    leaves: frozenset[str]
    """Modules without children."""

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
            return  # modules are not rewritten inside torch.func
        arguments, record = (args, kwargs), self.record
        self._open.append(
            (record.n_events, self._indexes(arguments), _versions(arguments),
             record.n_operators, record.n_in_python)
        )  # fmt: skip

    def _leave(self, path: str, _module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return
        first, inputs, before, n_operators, n_in_python = self._open.pop()
        record = self.record
        changed = _versions((args, kwargs)) != before
        n_first = next((len(a) for a in args if torch.is_tensor(a) and a.dim()), 0)
        self.calls.append(
            ForwardCall(
                path, first, record.n_events, inputs, self._indexes(output),
                changed, n_first,
                record.n_operators - n_operators, record.n_in_python - n_in_python,
            )
        )  # fmt: skip

    def _indexes(self, value: Any) -> tuple[int, ...]:
        indexes = [self.record.index_of(t) for t in tensors_in(value)]
        return tuple(dict.fromkeys(i for i in indexes if i is not None))


def _versions(value: Any) -> tuple[int, ...]:
    return tuple(t._version for t in tensors_in(value))


def study_step(step: ModelStep, inputs: Sequence[Any], workspaces: Workspaces) -> StepStudy:
    """Replay one training step without its optimizer, and record the calls of its modules."""
    watcher = _CallWatcher()
    trace = replace(step, optimizer=None).trace(
        inputs,
        workspaces,
        steps=1,
        watch=watcher.watch,
    )
    model = step.model
    # Calls in the backward pass belong to the model's own recomputation.
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
                 one.changes_input, one.n_first,
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
