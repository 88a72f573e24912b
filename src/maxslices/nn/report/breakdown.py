"""Breakdown of a step's memory by category, stage and part of the model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...core.allocators import round_to_granule
from ..replay import CATEGORIES, ReplayPeak, Trace
from ..replay.trace import Storage

FIRST_BUCKET_BYTES = 2**20
"""``torch.distributed._DEFAULT_FIRST_BUCKET_BYTES``."""
BUCKET_BYTES = 25 * 2**20
"""Default of DistributedDataParallel's ``bucket_cap_mb``."""
PREFIX = "ddp_bucket_"
"""Prefix of the buffers that represent buckets in a replay."""


def bucket_sizes(model: nn.Module) -> list[tuple[int, torch.dtype]]:
    """Items and dtype of each bucket, in the order in which they fill."""
    open_buckets: dict[torch.dtype, int] = {}
    closed: list[tuple[int, torch.dtype]] = []
    seen: set[torch.dtype] = set()
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        dtype = parameter.dtype
        items = open_buckets.get(dtype, 0) + parameter.numel()
        limit = BUCKET_BYTES if dtype in seen else FIRST_BUCKET_BYTES
        if items * parameter.element_size() >= limit:
            closed.append((items, dtype))
            seen.add(dtype)
            items = 0
        open_buckets[dtype] = items
    return closed + [(items, dtype) for dtype, items in open_buckets.items() if items]


def add_buckets(model: nn.Module) -> None:
    """Register the buckets as buffers of a copy without data."""
    for index, (items, dtype) in enumerate(bucket_sizes(model)):
        bucket = torch.empty(items, dtype=dtype, device="meta")
        model.register_buffer(f"{PREFIX}{index}", bucket, persistent=False)


NAMES = {
    "weights": "weights and buffers",
    "temporary": "temporary tensors",
    "workspace": "workspaces",
}
"""Names of categories where a text uses a longer one."""
LARGEST = 3
"""Number of holders in a report, chosen for its layout."""
_MOSTLY = 0.6
"""Part of the peak above which a module is replaced by its children. Below it, at least two modules
share the peak, and their names are more useful than those of their layers."""


@dataclass(frozen=True, slots=True)
class MemoryStage:
    """Memory of one stage of the step."""

    name: str
    """One of "model", "input", "forward", "loss", "backward" and "step", or after the step "delete"
    of all its tensors, and "empty_cache"."""
    end_bytes: int
    """In use at its end, as ``torch.cuda.memory_allocated()`` reports."""
    peak_bytes: int
    """Peak of allocated memory during the stage."""
    reserved_bytes: int
    """Held by the allocator at its end, as ``torch.cuda.memory_reserved()`` reports."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Memory of one part of the model."""

    path: str
    """Dotted path, or "" for the model's own forward outside its parts."""
    kind: str
    """Class of the module."""
    weights_bytes: int
    gradients_bytes: int
    held_bytes: int
    """Activations held from the end of the forward pass until the backward pass."""
    after_bytes: int
    """In use at the end of its first call, or 0 without a call."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One of the largest holders at the peak."""

    path: str
    kind: str
    n_bytes: int
    what: str
    """Main category of the bytes, and the largest tensor."""


def last_forward(trace: Trace) -> int:
    """Index of the mark of the last step's forward."""
    return max(index for index, mark in enumerate(trace.marks) if mark.name == "forward")


def categories_of(peak: ReplayPeak, ddp: bool) -> dict[str, int]:
    """Bytes at the peak by category, with DDP's buckets as their own category."""
    sums: dict[str, int] = dict.fromkeys([*CATEGORIES, *(["DDP buckets"] if ddp else [])], 0)
    for storage in peak.alive:
        is_bucket = storage.module.startswith(PREFIX)
        sums["DDP buckets" if is_bucket else storage.category] += round_to_granule(storage.n_bytes)
    return sums


def stages_of(trace: Trace) -> tuple[MemoryStage, ...]:
    """Stages before the steps, of the last step, and after it."""
    usage, held = trace.handed_out_bytes, trace.held_bytes
    stages: list[MemoryStage] = []
    first = 0
    marks = trace.marks
    last = last_forward(trace)
    for index, mark in enumerate(marks):
        if index < 2 or index >= last:
            end, most = usage[mark.event], max(usage[first : mark.event + 1], default=0)
            stages.append(MemoryStage(mark.name, end, most, held[mark.event]))
        first = mark.event + 1
    kept, before, after = trace.after_deletion
    stages.append(MemoryStage("delete", kept, stages[-1].end_bytes, before))
    stages.append(MemoryStage("empty_cache", kept, kept, after))
    return tuple(stages)


def _inside(path: str, names: Sequence[str]) -> str:
    """Part of the model that a path belongs to."""
    around = [name for name in names if path == name or path.startswith(f"{name}.")]
    return max(around, key=len, default="")


def groups_of(model: nn.Module, trace: Trace) -> list[str]:
    """Paths of the parts to report: the model's children, the largest replaced by its own."""
    modules = dict(model.named_modules(remove_duplicate=False))
    names = []
    for name, part in model.named_children():
        # A ModuleList has no forward of its own.
        is_list = isinstance(part, nn.ModuleList | nn.ModuleDict)
        within = [f"{name}.{each}" for each, _ in part.named_children()] if is_list else []
        names += within or [name]
    peak = trace.peak
    for _ in range(4):
        sums = dict.fromkeys(names, 0)
        for storage in peak.alive:
            owner = _inside(storage.module, names)
            if owner:
                sums[owner] += storage.n_bytes
        largest = max(sums, key=lambda name: sums[name], default="")
        if not largest or sums[largest] < _MOSTLY * peak.n_bytes:
            break
        inner = [f"{largest}.{name}" for name, _ in modules[largest].named_children()]
        if not inner:
            break
        at = names.index(largest)
        names[at : at + 1] = inner
    return names


def parts_of(
    model: nn.Module, trace: Trace, names: Sequence[str], held: ReplayPeak
) -> tuple[ModelPart, ...]:
    """Weights, gradients and held activations of each part of the model."""
    modules = dict(model.named_modules(remove_duplicate=False))
    after: dict[str, int] = {}
    for call in trace.modules:
        if call.stage == "forward":
            after.setdefault(call.module, trace.bytes_after(call))
    sums = {name: dict.fromkeys(CATEGORIES, 0) for name in ("", *names)}
    for storage in trace.moment(len(trace.events) - 1).alive:
        if storage.category in ("weights", "gradients"):
            _add(sums, storage, names)
    for storage in held.alive:
        if storage.category == "activations":
            _add(sums, storage, names)
    return tuple(
        ModelPart(
            name,
            type(modules[name]).__name__,
            each["weights"],
            each["gradients"],
            each["activations"],
            after.get(name, 0),
        )
        for name, each in sums.items()
        if name or any(each.values())
    )


def _add(sums: dict[str, dict[Any, int]], storage: Storage, names: Sequence[str]) -> None:
    if not storage.module.startswith(PREFIX):
        sums[_inside(storage.module, names)][storage.category] += round_to_granule(storage.n_bytes)


def holders_of(model: nn.Module, peak: ReplayPeak, names: Sequence[str]) -> tuple[Holder, ...]:
    """Largest holders at the peak, the largest first."""
    modules = dict(model.named_modules(remove_duplicate=False))
    groups: dict[str, list[Storage]] = {}
    for storage in peak.alive:
        if storage.category in ("input", "workspace") or storage.module.startswith(PREFIX):
            continue
        is_state = storage.category == "optimizer state"
        owner = "optimizer" if is_state else _inside(storage.module, names)
        groups.setdefault(owner, []).append(storage)
    holders = []
    for name, alive in groups.items():
        sums = Counter[str]()
        for storage in alive:
            sums[storage.category] += round_to_granule(storage.n_bytes)
        largest = max(alive, key=lambda storage: storage.n_bytes)
        category = max(sums, key=lambda each: sums[each])
        total = sum(sums.values())
        where = f" at {os.path.basename(largest.line)}" if largest.line and not name else ""
        what = (
            f"{sums[category] / total:.0%} {NAMES.get(category, category)}; the largest tensor is "
            f"{'x'.join(map(str, largest.shape)) or 'a scalar'} {largest.dtype}{where}"
        )
        kind = type(modules[name]).__name__ if name in modules else "state"
        holders.append(Holder(name, kind, total, what))
    return tuple(sorted(holders, key=lambda holder: -holder.n_bytes)[:LARGEST])
