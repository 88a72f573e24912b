"""What could be done with each module, and what it changes: read off one replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from ...model.allocators import round_to_granule
from ..replay import Trace
from .module_ranges import DEAR_LAYERS, with_runs
from .module_study import Seen, Study
from .rewrite import DEAR, Treatment

SMALL_BYTES = 2**20
"""A module that keeps less is not worth a treatment."""
PACK_OPS = 12
"""Operators that pack a tensor and unpack it, about."""
_DEAR_NAMES = frozenset(op.name() for op in DEAR)
_UNSAFE = (nn.ModuleList, nn.ModuleDict)


@dataclass(slots=True)
class Candidate:
    """A treatment of a module and what it is expected to change."""

    path: str
    treatment: Treatment
    begin: int
    """First event of its backward pass."""
    forward: tuple[int, int]
    """First event of its forward pass, and the one after the last."""
    changes: list[tuple[int, int, int]]
    """(first event, event after the last, bytes): added to what is in use between them."""
    results_bytes: int = 0
    """Of its results, what is there when its backward pass begins, because it was kept inside."""
    again_flops: float = 0.0
    again_bytes: int = 0
    """Read and written when it is computed again, or packed."""
    again_ops: int = 0
    """Operators that are run again, about."""
    link_bytes: int = 0
    """Of what is kept on the host."""
    spared: tuple[str, ...] = ()
    """Modules inside that are not run again: nothing is kept of them, or after them."""
    wider: float = 1.0
    """Items computed for those of the whole: bands have something around."""
    device_s: float = 0.0
    """Time that it adds on the device."""
    host_s: float = 0.0
    """Time that it adds on the host."""
    wrapped_s: float = 0.0
    """Of that, what comes again whenever what is around it is computed again."""
    copied_s: float = 0.0
    """What comes again then on the device: what is kept on the host goes there once more."""
    cost_s: float = 0.0
    """What is made least: how much longer a step takes with it, and a part of what is hidden."""

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
    modules = with_runs(model)
    n_calls: dict[str, int] = {}
    for call in found.seen:
        n_calls[call.path] = n_calls.get(call.path, 0) + 1
    made: list[Candidate] = []
    released = _released(found)
    writers = {call.path for call in found.seen if call.changes_input}
    for call in found.seen:
        module = modules.get(call.path)
        if module is None or isinstance(module, _UNSAFE):
            continue
        if not call.path:
            if "offload" in means:
                made += _offloaded(found, call, 0, released)
            continue
        if n_calls[call.path] > 1 or call.path in writers:
            continue
        if call.path not in found.begins:
            continue
        begin = found.begins[call.path]
        inside = range(call.first, call.end)
        kept = [
            (i, s)
            for i, s in enumerate(trace.storages)
            if s.born in inside
            and s.category == "activations"
            and i not in call.outputs
            and s.died is not None  # states of neurons outlive the step, whatever is done
            and s.died >= begin
        ]
        its = (call.first, call.end)
        born = [s.n_bytes for s in trace.storages if s.born in inside]
        again = (3 * sum(born), call.n_operators)
        size = sum(round_to_granule(s.n_bytes) for _, s in kept)
        extra = _inputs_kept(trace, call, begin)
        if "checkpoint" in means and size >= SMALL_BYTES:
            changes = [
                (min(released.get(i, s.born + 1), call.end), begin, -round_to_granule(s.n_bytes))
                for i, s in kept
            ]
            changes += [*extra, *_peak_inside(found, call, begin)]
            names = compressors.get(call.path, ()) if "pack" in means else ()
            treatment = Treatment("checkpoint", names if set(names) - {"none"} else ())
            results = sum(
                round_to_granule(trace.storages[i].n_bytes)
                for i in call.outputs
                if (trace.storages[i].died or 0) >= begin
            )
            changes += _packed_changes(trace, call, begin, treatment.compressors)[0]
            last = max(s.born for _, s in kept)
            spared = tuple(
                c.path
                for c in found.seen
                if last < c.first < call.end and isinstance(modules.get(c.path), DEAR_LAYERS)
            )
            made.append(
                Candidate(
                    call.path, treatment, begin, its, changes, results, 0.0, *again, spared=spared
                )
            )
        if "selective" in means and any(s.op in _DEAR_NAMES for _, s in kept):
            # Results of dear operators are kept even where the backward pass needs them not.
            dear = sum(
                round_to_granule(s.n_bytes)
                for i, s in enumerate(trace.storages)
                if s.born in inside
                and s.op in _DEAR_NAMES
                and i not in call.outputs
                and s.died is not None
                and s.died < call.end
            )
            cheap = (
                sum(round_to_granule(s.n_bytes) for _, s in kept if s.op not in _DEAR_NAMES) - dear
            )
            if SMALL_BYTES <= cheap < size:
                changes = [(call.end, begin, -cheap), *extra, *_peak_inside(found, call, begin)]
                treatment = Treatment("selective")
                made.append(Candidate(call.path, treatment, begin, its, changes, 0, 0.0, *again))
        if "offload" in means and (any(module.children()) or _keeps_alone(trace, call, module)):
            made += _offloaded(found, call, begin, released)
        names = compressors.get(call.path, ())
        if "pack" in means and any(n != "none" for n in names) and not any(module.children()):
            made += _packed(trace, call, begin, names)
    return made


def _offloaded(
    found: Study, call: Seen, begin: int, released: Mapping[int, int]
) -> list[Candidate]:
    """Return what keeping on the host takes away: of each storage, from its last use on.

    Arguments count too: what is before this module is expected to be kept there as well.
    """
    trace = found.trace
    changes = []
    n_bytes = 0
    # It is back when the backward pass of the first layer that was given it begins.
    back_at: dict[int, int] = {}
    for each in found.seen:
        if each.path in found.begins and each.path in found.leaves:
            for index in (*each.inputs, *each.outputs):
                back_at[index] = min(back_at.get(index, len(found.usage)), found.begins[each.path])
    for index, storage in enumerate(trace.storages):
        inside = call.first <= storage.born < call.end and index not in call.outputs
        if storage.category != "activations" or storage.n_bytes < SMALL_BYTES:
            continue
        if not (inside or index in call.inputs):
            continue
        if storage.died is None or storage.died <= found.turn:
            continue
        first = call.end if call.path else released.get(index, storage.born + 1)
        back = min(back_at.get(index, storage.died - 1), storage.died - 1)
        changes.append((first, back, -round_to_granule(storage.n_bytes)))
        n_bytes += storage.n_bytes
    if n_bytes == 0:
        return []
    its = (call.first, call.end)
    return [
        Candidate(
            call.path, Treatment("offload"), begin, its, changes,
            again_ops=PACK_OPS * len(changes), link_bytes=n_bytes,
        )
    ]  # fmt: skip


def _keeps_alone(trace: Trace, call: Seen, module: nn.Module) -> bool:
    """Tell whether a norm's input is kept by nothing else: the result of a convolution."""
    if not isinstance(module, nn.modules.batchnorm._NormBase) or len(call.inputs) != 1:
        return False
    return trace.storages[call.inputs[0]].op in _DEAR_NAMES


def _released(found: Study) -> dict[int, int]:
    """Return when the forward pass has no use for storages: the end of their last layer."""
    ends: dict[int, int] = {}
    for call in found.seen:
        if call.path in found.leaves:
            for index in (*call.inputs, *call.outputs):
                ends[index] = max(ends.get(index, 0), call.end)
    return ends


def _packed(trace: Trace, call: Seen, begin: int, names: tuple[str, ...]) -> list[Candidate]:
    changes, n_bytes = _packed_changes(trace, call, begin, names)
    if not changes:
        return []
    treatment = Treatment("pack", names)
    its = (call.first, call.end)
    return [Candidate(call.path, treatment, begin, its, changes, 0, 0.0, 5 * n_bytes, PACK_OPS)]


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
        saved = round_to_granule(storage.n_bytes) - round_to_granule(storage.n_bytes // part)
        changes.append((call.end, begin, -saved))
        n_bytes += storage.n_bytes
    return changes, n_bytes


def _inputs_kept(trace: Trace, call: Seen, begin: int) -> list[tuple[int, int, int]]:
    """Return what arguments add that would not be kept if it were not for the checkpoint."""
    found = []
    for index in call.inputs:
        storage = trace.storages[index]
        if storage.died is not None and storage.died < begin:
            found.append((storage.died, begin, round_to_granule(storage.n_bytes)))
    return found


def _peak_inside(found: Study, call: Seen, begin: int) -> list[tuple[int, int, int]]:
    """Return what the forward pass takes for a while: again, when it is computed again."""
    if call.end <= call.first:
        return []
    usage = found.usage
    passing = int(usage[call.first : call.end].max() - usage[call.end - 1])
    return [(begin, begin + 1, passing)] if passing > 0 else []
