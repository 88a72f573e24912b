"""Candidates: rewrites of single modules, with their effects read off one replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from ...core.allocators import round_to_granule
from ..replay import Trace
from ..replay.trace import Storage
from .rewrite import EXPENSIVE_OPS, Rewrite
from .study import EXPENSIVE_LAYERS, ForwardCall, StepStudy, modules_and_ranges

SMALL_BYTES = 2**20
"""Modules that keep less are not rewritten. A checkpoint takes the host 0.2 ms, and the smallest
segment that the allocator returns to the device has 2 MiB."""
COPY_OPS = 12
"""Operators that copy one tensor to the host and back, approximately."""
PARTS = (2, 4, 8)
"""Numbers of parts that are offered, each half the size of the one before."""
_EXPENSIVE_NAMES = frozenset(op.name() for op in EXPENSIVE_OPS)
_UNSAFE = (nn.ModuleList, nn.ModuleDict)


@dataclass(slots=True)
class Candidate:
    """A rewrite of one module, with its expected effect on memory and time."""

    path: str
    rewrite: Rewrite
    begin: int
    """First event of the backward pass of the module."""
    forward: tuple[int, int]
    """First event of the forward pass of the module, and the event after its last."""
    changes: list[tuple[int, int, int]]
    """Changes of the memory in use: (first event, event after the last, bytes)."""
    results_bytes: int = 0
    """Bytes of results that still exist when the backward pass begins."""
    recomputed_flops: float = 0.0
    recomputed_bytes: int = 0
    """Bytes read and written by recomputing."""
    recomputed_ops: int = 0
    """Approximate number of recomputed operators."""
    link_bytes: int = 0
    """Bytes kept on the host."""
    spared: tuple[str, ...] = ()
    """Modules inside that are not recomputed, as they and all later ones keep nothing."""
    device_s: float = 0.0
    """Added time on the device."""
    host_s: float = 0.0
    """Added time on the host."""
    wrapped_s: float = 0.0
    """Part of `host_s` that is repeated by each checkpoint around this module."""
    copied_s: float = 0.0
    """Time of copies to the host, which each checkpoint around this module repeats."""
    cost_s: float = 0.0
    """Cost that the search minimizes: the added time of a step, and a part of the hidden time."""

    @property
    def is_usable(self) -> bool:
        """False if a replay or a comparison of gradients excluded it."""
        return self.cost_s != float("inf")

    @property
    def saved_bytes(self) -> int:
        """Largest reduction of the memory in use at any event."""
        return -min((change[2] for change in self.changes), default=0)


def candidates(
    study: StepStudy,
    model: nn.Module,
    means: Sequence[str],
) -> list[Candidate]:
    """Find the rewrites of each module or range that is called once and writes to no argument."""
    trace = study.trace
    modules = modules_and_ranges(model)
    n_calls = Counter(call.path for call in study.calls)
    rewrites: list[Candidate] = []
    released = _released(study)
    writers = {call.path for call in study.calls if call.changes_input}
    overwritten = {i for call in study.calls if call.changes_input for i in call.inputs}
    for call in study.calls:
        module = modules.get(call.path)
        if module is None or isinstance(module, _UNSAFE):
            continue
        if not call.path:
            if "offload" in means:
                rewrites += _offloaded(study, call, 0, released)
            continue
        if n_calls[call.path] > 1 or call.path in writers or call.path not in study.begins:
            continue
        begin = study.begins[call.path]
        born = [(i, s) for i, s in enumerate(trace.storages) if call.first <= s.born < call.end]
        own = [(i, s) for i, s in born if i not in call.outputs]
        # States of neurons outlive the trace, so no rewrite frees them.
        kept = [
            (i, s)
            for i, s in own
            if s.category == "activations" and s.died is not None and s.died >= begin
        ]
        size = _rounded(s for _, s in kept)
        extra = [*_inputs_kept(trace, call, begin), *_peak_inside(study, call, begin)]
        forward = call.first, call.end
        again = 3 * sum(s.n_bytes for _, s in born), call.n_operators
        if "checkpoint" in means and size >= SMALL_BYTES:
            changes = [
                (min(released.get(i, s.born + 1), call.end), begin, -round_to_granule(s.n_bytes))
                for i, s in kept
            ]
            outputs = [trace.storages[i] for i in call.outputs]
            last = max(s.born for _, s in kept)
            spared = tuple(
                c.path
                for c in study.calls
                if last < c.first < call.end and isinstance(modules.get(c.path), EXPENSIVE_LAYERS)
            )
            rewrites.append(
                Candidate(
                    call.path, Rewrite("checkpoint"), begin, forward, [*changes, *extra],
                    _rounded(s for s in outputs if (s.died or 0) >= begin), 0.0, *again,
                    spared=spared,
                )
            )  # fmt: skip
        is_overwritten = any(i in overwritten and s.op in _EXPENSIVE_NAMES for i, s in born)
        keeps_expensive = any(s.op in _EXPENSIVE_NAMES for _, s in kept)
        if "selective" in means and keeps_expensive and not is_overwritten:
            cheap = _rounded(s for _, s in kept if s.op not in _EXPENSIVE_NAMES)
            # A selective checkpoint also keeps results that the backward pass does not need.
            passing = [s for _, s in own if s.died is not None and s.died < call.end]
            cheap -= _rounded(s for s in passing if s.op in _EXPENSIVE_NAMES)
            if SMALL_BYTES <= cheap < size:
                changes = [(call.end, begin, -cheap), *extra]
                rewrites.append(
                    Candidate(
                        call.path, Rewrite("selective"), begin, forward, changes, 0, 0.0, *again
                    )
                )
        if "offload" in means and (any(module.children()) or _keeps_alone(trace, call, module)):
            rewrites += _offloaded(study, call, begin, released)
    return rewrites


def _rounded(storages: Iterable[Storage]) -> int:
    """Bytes of storages as the allocator rounds them."""
    return sum(round_to_granule(storage.n_bytes) for storage in storages)


def _offloaded(
    study: StepStudy, call: ForwardCall, begin: int, released: Mapping[int, int]
) -> list[Candidate]:
    """Candidate that keeps the tensors of a module on the host, each after its last use.

    Arguments are included, as the modules before this one are usually offloaded too.
    """
    trace = study.trace
    changes = []
    n_bytes = 0
    # A storage returns to the device when the backward pass of the first layer that used it begins.
    back_at: dict[int, int] = {}
    for each in study.calls:
        if each.path in study.begins and each.path in study.leaves:
            for index in (*each.inputs, *each.outputs):
                back_at[index] = min(back_at.get(index, len(study.usage)), study.begins[each.path])
    for index, storage in enumerate(trace.storages):
        inside = call.first <= storage.born < call.end and index not in call.outputs
        if storage.category != "activations" or storage.n_bytes < SMALL_BYTES:
            continue
        if not (inside or index in call.inputs):
            continue
        if storage.died is None or storage.died <= study.backward_start:
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
            call.path, Rewrite("offload"), begin, its, changes,
            recomputed_ops=COPY_OPS * len(changes), link_bytes=n_bytes,
        )
    ]  # fmt: skip


def _keeps_alone(trace: Trace, call: ForwardCall, module: nn.Module) -> bool:
    """True for a norm of a convolution's result, which no other module keeps."""
    if not isinstance(module, nn.modules.batchnorm._NormBase) or len(call.inputs) != 1:
        return False
    return trace.storages[call.inputs[0]].op in _EXPENSIVE_NAMES


def _released(study: StepStudy) -> dict[int, int]:
    """Event at which the forward pass has used each storage for the last time."""
    ends: dict[int, int] = {}
    for call in study.calls:
        if call.path in study.leaves:
            for index in (*call.inputs, *call.outputs):
                ends[index] = max(ends.get(index, 0), call.end)
    return ends


def _inputs_kept(trace: Trace, call: ForwardCall, begin: int) -> list[tuple[int, int, int]]:
    """Arguments that are kept only for the checkpoint."""
    changes = []
    for index in call.inputs:
        storage = trace.storages[index]
        if storage.died is not None and storage.died < begin:
            changes.append((storage.died, begin, round_to_granule(storage.n_bytes)))
    return changes


def _peak_inside(study: StepStudy, call: ForwardCall, begin: int) -> list[tuple[int, int, int]]:
    """Temporary memory of the forward pass, which recomputation needs again."""
    if call.end <= call.first:
        return []
    usage = study.usage
    passing = int(usage[call.first : call.end].max() - usage[call.end - 1])
    return [(begin, begin + 1, passing)] if passing > 0 else []


def layer_candidates(study: StepStudy, model: nn.Module) -> list[Candidate]:
    """Candidates that run convolutions in parts of their first axis, for a smaller workspace.

    Results and gradients of the parts are concatenated, and nothing is recomputed.
    """
    rewrites: list[Candidate] = []
    modules = dict(model.named_modules())
    trace, usage = study.trace, study.usage
    workspaces: dict[str, list[tuple[int, int]]] = {}
    for event, (kind, index) in enumerate(trace.events):
        if kind == "call" and event:
            n_bytes = int(usage[event] - usage[event - 1])
            if n_bytes >= SMALL_BYTES:
                workspaces.setdefault(trace.calls[index].module, []).append((event, n_bytes))
    n_calls = [call.path for call in study.calls]
    for call in study.calls:
        module = modules.get(call.path)
        if not isinstance(module, nn.modules.conv._ConvNd) or n_calls.count(call.path) > 1:
            continue
        begin, its = study.begins.get(call.path), workspaces.get(call.path)
        if begin is None or its is None:
            continue
        moved = sum(trace.storages[i].n_bytes for i in (*call.inputs, *call.outputs))
        results = sum(round_to_granule(trace.storages[i].n_bytes) for i in call.outputs)
        input_sizes = {trace.storages[i].n_bytes for i in call.inputs}
        # Gradients of the parts are concatenated after the last workspace and the gradient of the
        # result are freed.
        together = sum(
            round_to_granule(s.n_bytes)
            for s in trace.storages
            if s.born >= begin and s.module == call.path and s.n_bytes in input_sizes
            and s.category != "gradients"
        )  # fmt: skip
        for parts in PARTS:
            if parts > call.n_first:
                continue
            over = [
                (
                    event,
                    event + 1,
                    max(n_bytes // parts, (together - results) * (event >= begin)) - n_bytes,
                )
                for event, n_bytes in its
            ]
            changes = [*over, (call.end - 1, call.end, results)]
            rewrite = Rewrite("split", (), parts)
            rewrites.append(
                Candidate(
                    call.path, rewrite, begin, (call.first, call.end), changes,
                    recomputed_bytes=3 * moved, recomputed_ops=3 * parts + 2,
                )
            )  # fmt: skip
    return rewrites
