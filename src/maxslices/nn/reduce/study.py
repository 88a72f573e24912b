"""One replay of the unreduced step: what each module is given, and when it is at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves

from ...tracing import Replay, Trace, WorkAreas
from ..step import Step, total_of
from .inplace import set_in_place
from .places import children_of, runs


@dataclass(slots=True)
class Seen:
    """One call of a module, or of a run of layers, in the forward pass."""

    path: str
    kind: str
    first: int
    """Index of the first event inside."""
    end: int
    """Index of the first event after it."""
    inputs: tuple[int, ...]
    """Storages of its tensor arguments."""
    outputs: tuple[int, ...]
    changes_input: bool
    """Whether it writes to one of its arguments."""
    n_first: int
    """Length of the first axis of its first argument; 0 if that is no tensor."""
    shape: tuple[int, ...] = ()
    """Of its only argument, if that is a tensor and its only result is one too."""
    n_operators: int = 0
    """Operators of its forward pass."""
    n_foreign: int = 0
    """Those of them that are not torch's own."""


@dataclass(slots=True)
class Study:
    """One step without an optimizer, unreduced."""

    trace: Trace
    seen: list[Seen]
    """Calls in the forward pass, in order of their ends; those of runs after them."""
    begins: dict[str, int]
    """First event of the backward pass of each, what is inside included."""
    usage: npt.NDArray[np.int64]
    """Bytes in use at each event."""
    leaves: frozenset[str]
    """Modules without others inside."""

    @property
    def turn(self) -> int:
        """Event of the end of the loss: then the backward pass begins."""
        return next(m.event for m in self.trace.marks if m.name == "loss")


def study(
    step: Step, inputs: Sequence[Any], work_areas: WorkAreas, in_place: Sequence[str] = ()
) -> Study:
    """Replay one step of training without its optimizer and note what modules are given."""
    seen: list[Seen] = []
    record = Replay(work_areas=work_areas, lines=False)
    targets = step.target_specs(inputs)
    with record:
        twin = step.twin()
        set_in_place(twin, in_place)
        model = record.model(twin, is_twin=True)
        open_calls: list[tuple[int, tuple[int, ...], tuple[int, ...], int, int]] = []
        index = record._index

        def indexes(value: Any) -> tuple[int, ...]:
            found = [
                index.get(t.untyped_storage()._cdata, -1)
                for t in tree_leaves(value)
                if torch.is_tensor(t)
            ]
            return tuple(dict.fromkeys(i for i in found if i >= 0))

        def versions(value: Any) -> tuple[int, ...]:
            return tuple(t._version for t in tree_leaves(value) if torch.is_tensor(t))

        for path, module in model.named_modules():

            def enter(_m: Any, args: Any, kwargs: Any) -> None:
                given = (args, kwargs)
                counts = record.n_operators, record.n_foreign
                open_calls.append((len(record._events), indexes(given), versions(given), *counts))

            def leave(_m: Any, args: Any, kwargs: Any, made: Any, path: str = path) -> None:
                first, given, before, n_operators, n_foreign = open_calls.pop()
                changed = versions((args, kwargs)) != before
                n_first = next((len(a) for a in args if torch.is_tensor(a) and a.dim()), 0)
                one = len(args) == 1 and not kwargs and all(map(torch.is_tensor, (*args, made)))
                seen.append(
                    Seen(path, type(_m).__name__, first, len(record._events), given,
                         indexes(made), changed, n_first, tuple(args[0].shape) if one else (),
                         record.n_operators - n_operators, record.n_foreign - n_foreign)
                )  # fmt: skip

            module.register_forward_pre_hook(enter, with_kwargs=True)
            module.register_forward_hook(leave, with_kwargs=True)
        record.mark("model")
        given = record.input(tuple(inputs))
        wanted = record.input(targets)
        record.mark("input")
        casting = torch.autocast("cuda", dtype=step.amp or torch.float16, enabled=bool(step.amp))
        with casting:
            with record.stage("forward", "activations"):
                output = model(*given)
            n_seen = len(seen)
            with record.stage("loss", "activations"):
                value = total_of(output) if step.loss is None else step.loss(output, *wanted)
        del output
        record.backward(value)
        del value
        record.categorize((p.grad for p in model.parameters()), "gradients")
    trace = record.trace()
    leaves = frozenset(path for path, m in model.named_modules() if not any(m.children()))
    found = Study(trace, seen[:n_seen], {}, np.array(trace.in_use_bytes, np.int64), leaves)
    found.begins = _begins(found)
    _add_runs(found, model)
    return found


def _add_runs(found: Study, model: torch.nn.Module) -> None:
    calls: dict[str, list[Seen]] = {}
    for call in found.seen:
        calls.setdefault(call.path, []).append(call)
    modules = dict(model.named_modules())
    for run in runs(model):
        inside = [calls.get(path, []) for path in children_of(run, modules)]
        if any(len(each) != 1 for each in inside):
            continue
        one, last = inside[0][0], inside[-1][0]
        found.seen.append(
            Seen(run.path, "run", one.first, last.end, one.inputs, last.outputs,
                 one.changes_input, one.n_first, one.shape if last.shape else (),
                 sum(each[0].n_operators for each in inside),
                 sum(each[0].n_foreign for each in inside))
        )  # fmt: skip
        begins = [found.begins[each[0].path] for each in inside if each[0].path in found.begins]
        if begins:
            found.begins[run.path] = min(begins)


def _begins(found: Study) -> dict[str, int]:
    trace, start = found.trace, found.turn
    paths = {call.path for call in found.seen}
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
