"""What each module keeps for the backward pass, from when to when: read off one replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ...tracing import Replay, Trace, WorkAreas
from ...tracing.trace import rounded
from ..step import Step
from .inplace import set_in_place
from .treat import DEAR, Treatment

SMALL_BYTES = 2**20
"""A module that keeps less is not worth a treatment."""
_DEAR_NAMES = frozenset(op.name() for op in DEAR)
_UNSAFE = (nn.ModuleList, nn.ModuleDict)


@dataclass(slots=True)
class Seen:
    """One call of a module in the forward pass."""

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


@dataclass(slots=True)
class Study:
    """One step without an optimizer, unreduced."""

    trace: Trace
    seen: list[Seen]
    """Calls in the forward pass, in order of their ends."""
    usage: npt.NDArray[np.int64]
    """Bytes in use at each event."""


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
        open_calls: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
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
                open_calls.append((len(record._events), indexes(given), versions(given)))

            def leave(_m: Any, args: Any, kwargs: Any, made: Any, path: str = path) -> None:
                first, given, before = open_calls.pop()
                changed = versions((args, kwargs)) != before
                seen.append(
                    Seen(path, type(_m).__name__, first, len(record._events), given,
                         indexes(made), changed)
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
                value = _total(output) if step.loss is None else step.loss(output, *wanted)
        del output
        record.backward(value)
        del value
        record.categorize((p.grad for p in model.parameters()), "gradients")
    trace = record.trace()
    return Study(trace, seen[:n_seen], np.array(trace.in_use_bytes, np.int64))


def _total(output: Any) -> torch.Tensor:
    tensors = [t for t in tree_leaves(output) if torch.is_tensor(t) and t.is_floating_point()]
    total = tensors[0].sum()
    for tensor in tensors[1:]:
        total = total + tensor.sum()
    return total


@dataclass(slots=True)
class Candidate:
    """A treatment of a module and what it is expected to change."""

    path: str
    treatment: Treatment
    changes: list[tuple[int, int, int]]
    """(first event, event after the last, bytes): added to what is in use between them."""
    again_flops: float = 0.0
    again_bytes: int = 0
    """Read and written when it is computed again, or packed."""
    link_bytes: int = 0
    """Over the link to the host and back."""
    cost_s: float = 0.0
    """Expected time that it adds to a step."""

    @property
    def saved_bytes(self) -> int:
        """Most that it takes away at one time."""
        return -min((change[2] for change in self.changes), default=0)


def candidates(
    found: Study, model: nn.Module, means: Sequence[str], compressors: dict[str, tuple[str, ...]]
) -> list[Candidate]:
    """Return what could be done with each module, one by one.

    `compressors` names those of each module's tensor arguments.
    """
    trace = found.trace
    modules = dict(model.named_modules())
    n_calls: dict[str, int] = {}
    for call in found.seen:
        n_calls[call.path] = n_calls.get(call.path, 0) + 1
    begins = backward_begins(found)
    made: list[Candidate] = []
    writers = {call.path for call in found.seen if call.changes_input}
    for call in found.seen:
        module = modules.get(call.path)
        if module is None or isinstance(module, _UNSAFE):
            continue
        if not call.path:
            if "offload" in means:
                made += _offloaded(found, call, 0)
            continue
        if n_calls[call.path] > 1 or call.path in writers:
            continue
        inside = range(call.first, call.end)
        kept = [
            s
            for i, s in enumerate(trace.storages)
            if s.born in inside
            and s.category == "activations"
            and i not in call.outputs
            and (s.died is None or s.died >= call.end)
        ]
        if call.path not in begins:
            continue
        begin = begins[call.path]
        again_bytes = 3 * sum(s.n_bytes for s in trace.storages if s.born in inside)
        size = sum(rounded(s.n_bytes) for s in kept)
        extra = _inputs_kept(trace, call, begin)
        if "checkpoint" in means and size >= SMALL_BYTES:
            changes = [(call.end, begin, -size), *extra, *_peak_inside(found, call, begin)]
            names = compressors.get(call.path, ()) if "pack" in means else ()
            treatment = Treatment("checkpoint", names if set(names) - {"none"} else ())
            changes += _packed_changes(trace, call, begin, treatment.compressors)[0]
            made.append(Candidate(call.path, treatment, changes, 1.0, again_bytes))
        if "selective" in means and any(s.op in _DEAR_NAMES for s in kept):
            # Results of dear operators are kept even where the backward pass needs them not.
            dear = sum(
                rounded(s.n_bytes)
                for i, s in enumerate(trace.storages)
                if s.born in inside
                and s.op in _DEAR_NAMES
                and i not in call.outputs
                and s.died is not None
                and s.died < call.end
            )
            cheap = sum(rounded(s.n_bytes) for s in kept if s.op not in _DEAR_NAMES) - dear
            if SMALL_BYTES <= cheap < size:
                changes = [(call.end, begin, -cheap), *extra, *_peak_inside(found, call, begin)]
                made.append(Candidate(call.path, Treatment("selective"), changes, 0.0, again_bytes))
        if "offload" in means and any(module.children()):
            made += _offloaded(found, call, begin)
        names = compressors.get(call.path, ())
        if "pack" in means and any(n != "none" for n in names) and not any(module.children()):
            made += _packed(trace, call, begin, names)
    return made


def _offloaded(found: Study, call: Seen, begin: int) -> list[Candidate]:
    """Return what keeping on the host takes away: of each storage, from its last use on.

    Arguments count too: what is before this module is expected to be kept there as well.
    """
    trace = found.trace
    turn = next(m.event for m in trace.marks if m.name == "loss")
    changes = []
    n_bytes = 0
    for index, storage in enumerate(trace.storages):
        inside = call.first <= storage.born < call.end and index not in call.outputs
        if storage.category != "activations" or storage.n_bytes < SMALL_BYTES:
            continue
        if not (inside or index in call.inputs):
            continue
        if storage.died is None or storage.died <= turn:
            continue
        # It is back when it is first read, that is just before it is dropped.
        first = call.end if call.path else _last_reader(found, index, storage.born)
        changes.append((first, storage.died - 1, -rounded(storage.n_bytes)))
        n_bytes += storage.n_bytes
    if n_bytes == 0:
        return []
    return [Candidate(call.path, Treatment("offload"), changes, link_bytes=2 * n_bytes)]


def _last_reader(found: Study, index: int, born: int) -> int:
    """Return the end of the last small module that was given a storage."""
    ends = [c.end for c in found.seen if index in c.inputs and c.path]
    own = [c.end for c in found.seen if index in c.outputs and c.path]
    return max([born + 1, *ends, *own])


def _packed(trace: Trace, call: Seen, begin: int, names: tuple[str, ...]) -> list[Candidate]:
    changes, n_bytes = _packed_changes(trace, call, begin, names)
    if not changes:
        return []
    return [Candidate(call.path, Treatment("pack", names), changes, again_bytes=5 * n_bytes)]


def _packed_changes(
    trace: Trace, call: Seen, begin: int, names: tuple[str, ...]
) -> tuple[list[tuple[int, int, int]], int]:
    """Return what packing the arguments takes away, and how much is packed."""
    changes: list[tuple[int, int, int]] = []
    n_bytes = 0
    for index, name in zip(call.inputs, names, strict=False):
        storage = trace.storages[index]
        if name == "none" or storage.category == "input" or storage.n_bytes < SMALL_BYTES:
            continue
        part = 32 if name == "bit" else 4
        saved = rounded(storage.n_bytes) - rounded(storage.n_bytes // part)
        changes.append((call.end, begin, -saved))
        n_bytes += storage.n_bytes
    return changes, n_bytes


def _inputs_kept(trace: Trace, call: Seen, begin: int) -> list[tuple[int, int, int]]:
    """Return what arguments add that would not be kept if it were not for the checkpoint."""
    found = []
    for index in call.inputs:
        storage = trace.storages[index]
        if storage.died is not None and storage.died < begin:
            found.append((storage.died, begin, rounded(storage.n_bytes)))
    return found


def _peak_inside(found: Study, call: Seen, begin: int) -> list[tuple[int, int, int]]:
    """Return what the forward pass takes for a while: again, when it is computed again."""
    if call.end <= call.first:
        return []
    usage = found.usage
    passing = int(usage[call.first : call.end].max() - usage[call.end - 1])
    return [(begin, begin + 1, passing)] if passing > 0 else []


def backward_begins(found: Study) -> dict[str, int]:
    """Return the first event of the backward pass of each module, children included."""
    trace = found.trace
    start = next(m.event for m in trace.marks if m.name == "loss")
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
