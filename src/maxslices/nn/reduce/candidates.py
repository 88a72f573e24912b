"""What could be done with each module, and what it changes: read off one replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ...tracing import Trace
from ...tracing.trace import rounded
from .places import with_runs
from .study import Seen, Study
from .treat import DEAR, Treatment

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
    changes: list[tuple[int, int, int]]
    """(first event, event after the last, bytes): added to what is in use between them."""
    again_flops: float = 0.0
    again_bytes: int = 0
    """Read and written when it is computed again, or packed."""
    again_ops: int = 0
    """Operators that are run again, about."""
    link_bytes: int = 0
    """Over the link to the host and back."""
    device_s: float = 0.0
    """Time that it adds on the device."""
    host_s: float = 0.0
    """Time that it adds on the host."""
    cost_s: float = 0.0
    """What is made least: the one that counts, and a part of the other."""

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
        if call.path not in found.begins:
            continue
        begin = found.begins[call.path]
        born = [s.n_bytes for s in trace.storages if s.born in inside]
        again = (3 * sum(born), len(born))
        size = sum(rounded(s.n_bytes) for s in kept)
        extra = _inputs_kept(trace, call, begin)
        if "checkpoint" in means and size >= SMALL_BYTES:
            changes = [(call.end, begin, -size), *extra, *_peak_inside(found, call, begin)]
            names = compressors.get(call.path, ()) if "pack" in means else ()
            treatment = Treatment("checkpoint", names if set(names) - {"none"} else ())
            changes += _packed_changes(trace, call, begin, treatment.compressors)[0]
            made.append(Candidate(call.path, treatment, begin, changes, 1.0, *again))
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
                treatment = Treatment("selective")
                made.append(Candidate(call.path, treatment, begin, changes, 0.0, *again))
        if "offload" in means and (any(module.children()) or _keeps_alone(trace, call, module)):
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
    changes = []
    n_bytes = 0
    for index, storage in enumerate(trace.storages):
        inside = call.first <= storage.born < call.end and index not in call.outputs
        if storage.category != "activations" or storage.n_bytes < SMALL_BYTES:
            continue
        if not (inside or index in call.inputs):
            continue
        if storage.died is None or storage.died <= found.turn:
            continue
        # It is back when it is first read, that is just before it is dropped.
        first = call.end if call.path else _last_reader(found, index, storage.born)
        changes.append((first, storage.died - 1, -rounded(storage.n_bytes)))
        n_bytes += storage.n_bytes
    if n_bytes == 0:
        return []
    return [Candidate(call.path, Treatment("offload"), begin, changes, link_bytes=2 * n_bytes)]


def _keeps_alone(trace: Trace, call: Seen, module: nn.Module) -> bool:
    """Tell whether a norm's input is kept by nothing else: the result of a convolution."""
    if not isinstance(module, nn.modules.batchnorm._NormBase) or len(call.inputs) != 1:
        return False
    return trace.storages[call.inputs[0]].op in _DEAR_NAMES


def _last_reader(found: Study, index: int, born: int) -> int:
    """Return the end of the last small module that was given a storage."""
    ends = [c.end for c in found.seen if index in c.inputs and c.path]
    own = [c.end for c in found.seen if index in c.outputs and c.path]
    return max([born + 1, *ends, *own])


def _packed(trace: Trace, call: Seen, begin: int, names: tuple[str, ...]) -> list[Candidate]:
    changes, n_bytes = _packed_changes(trace, call, begin, names)
    if not changes:
        return []
    treatment = Treatment("pack", names)
    return [Candidate(call.path, treatment, begin, changes, 0.0, 5 * n_bytes, PACK_OPS)]


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
