"""Where the memory of a step goes: by what it is held for, stage by stage, module by module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..estimators.areas import measured_areas
from ..tracing import CATEGORIES, Peak, Spec, Trace, WorkAreas
from ..tracing.storages import Storage, rounded
from .batch import make_step
from .ddp import PREFIX, add_buckets
from .errors import ModelArgumentError
from .memory import CONTEXT_BYTES, Budget, budget_of
from .savings import Saving, savings_of
from .step import Mode, shape_text

LARGEST = 3
"""Holders that are named."""
_MOSTLY = 0.6
"""A module that holds more than this part is looked into."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the step."""

    name: str
    """"model", "input", "forward", "loss", "backward", "step"."""
    end_bytes: int
    """In use when it is over: what ``torch.cuda.memory_allocated`` returns there."""
    peak_bytes: int
    """The most in use during it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the model."""

    path: str
    """Dotted path; "" is what the model's own forward does beside calling its parts."""
    kind: str
    """Its class."""
    weights_bytes: int
    gradients_bytes: int
    held_bytes: int
    """Activations that are kept from the end of the forward pass until the backward pass."""
    after_bytes: int
    """In use when its forward returned the first time; 0 if it was not called."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One of those who hold most at the peak."""

    path: str
    kind: str
    n_bytes: int
    what: str
    """Of what that consists, and its largest tensor."""


@dataclass(frozen=True, eq=False)
class MemoryReport:
    """What a step takes; ``print`` it, or `plot` it."""

    model: str
    """Class of the model."""
    n_parameters: int
    inputs: tuple[str, ...]
    """Shapes and dtypes."""
    mode: str
    optimizer: str
    """Class of the optimizer, or ""."""
    amp: str
    """Lower precision of autocast, or ""."""
    ddp: bool
    trace: Trace
    """All that happened."""
    categories: dict[str, int]
    """Bytes at the peak by what they are held for; "DDP buckets" among them with `ddp`."""
    allocated_bytes: int
    """The most in use at once."""
    reserved_bytes: int
    """The most that the allocator holds when there is room."""
    needed_bytes: int
    """The least limit of the allocator under which the step runs."""
    context_bytes: int
    """What CUDA itself takes for the process."""
    work_areas: str
    """Where the sizes of the libraries' work areas come from."""
    stages: tuple[Stage, ...]
    parts: tuple[Part, ...]
    holders: tuple[Holder, ...]
    savings: tuple[Saving, ...]
    at_full_size: float
    """Part of the activations at the peak that is as wide and high as the input, 0 to 1."""
    budget: Budget | None = field(default=None, repr=False)
    """Of the card that was asked about."""

    @property
    def device_bytes(self) -> int:
        """What the process takes of the card: what is reserved, and CUDA's context."""
        return self.reserved_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the step runs on the card that was asked about; None without one."""
        return None if self.budget is None else self.trace.fits(self.budget.limit_bytes)

    @property
    def peak(self) -> Peak:
        """What was alive when the most was."""
        return self.trace.peak

    def __str__(self) -> str:
        from .text import report_text

        return report_text(self)

    def as_json(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        from .text import report_json

        return report_json(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw memory over the step to an image file; needs matplotlib."""
        from .plot import plot_report

        plot_report(self, path)


def memory_report(
    model: nn.Module,
    inputs: Any,
    mode: Mode = "training",
    optimizer: Any = None,
    amp: torch.dtype | bool | None = False,
    ddp: bool = False,
    *,
    loss: Any = None,
    targets: Any = None,
    memory: str | int | None = None,
    device: torch.device | str | None = None,
    work_areas: WorkAreas | None = None,
) -> MemoryReport:
    """Say what holds memory in a step of a model, and what would save some.

    Parameters
    ----------
    model : torch.nn.Module
        Never changed. It is looked at in the train or eval mode that it is in; for training,
        in train mode.
    inputs : shape, Spec, tensor, or a tuple or dict of them
        Arguments of the model: (4, 1, 256, 256) is one input of float32; a dict has keyword
        arguments. Tensors are not read.
    mode : {"training", "forward", "inference"}
        Two steps of training, the second of which is shown; a forward pass with gradients; or
        without.
    optimizer, loss, amp
        As for `max_batch_size`.
    ddp : bool
        Whether ``DistributedDataParallel`` holds gradient buckets too.
    targets : Spec, tensor, or a tuple of them, optional
        What the loss compares with; by default as for `max_batch_size`.
    memory : str or int, optional
        Memory of a card, such as "24GB": the report says whether the step fits.
    device : torch.device or str, optional
        A CUDA device whose work areas are measured; by default they are allowed for.
    work_areas : WorkAreas, optional
        In place of those.

    Returns
    -------
    MemoryReport
        Its text answers why the step takes so much.

    Raises
    ------
    ModelArgumentError
        If the model does not run on such inputs, with torch's own words.
    TraceError
        If it cannot be replayed without data, naming the line.
    """
    given, named = _arguments(inputs)
    wanted = None if targets is None else (lambda *_: targets)
    step = make_step(model, mode, optimizer, loss, wanted, amp, None)
    step = replace(step, evaluate=False)
    change = add_buckets if ddp and mode == "training" else None
    areas = WorkAreas.allowance() if work_areas is None else work_areas
    trace = step.trace(given, areas, change=change, lines=True, named=named)
    if work_areas is None and device is not None and torch.device(device).type == "cuda":
        areas, _ = measured_areas(trace.calls, torch.device(device))
        trace = trace.with_work_areas(areas)
    names = _groups(model, trace)
    after = trace.marks[_last(trace, "forward")].event
    held = trace.moment(after)
    return MemoryReport(
        type(model).__name__,
        sum(p.numel() for p in model.parameters()),
        tuple(
            f"{shape_text(item)} {str(item.dtype).removeprefix('torch.')}"
            for item in tree_leaves((given, named))
            if isinstance(item, Spec | torch.Tensor)
        ),
        mode,
        _name(step.optimizer),
        "" if step.amp is None else str(step.amp).removeprefix("torch."),
        ddp,
        trace,
        _categories(trace.peak, ddp),
        trace.peak_bytes,
        trace.reserved_bytes,
        trace.needed_bytes,
        CONTEXT_BYTES,
        areas.origin,
        _stages(trace),
        _parts(model, trace, names, held),
        _holders(model, trace.peak, names),
        savings_of(step, given, named, areas, trace, change),
        _at_full_size(trace.peak, given),
        None if memory is None else budget_of(model, None, memory),
    )


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments, shapes replaced by `Spec`."""

    def is_shape(item: Any) -> bool:
        return isinstance(item, tuple | list) and bool(item) and all(type(n) is int for n in item)

    def convert(item: Any) -> Any:
        return Spec(tuple(item)) if is_shape(item) else item

    if isinstance(inputs, dict):
        return (), {
            name: tree_map(convert, item, is_leaf=is_shape) for name, item in inputs.items()
        }
    if is_shape(inputs) or not isinstance(inputs, tuple | list):
        inputs = (inputs,)
    made = tuple(convert(item) for item in inputs)
    if not any(isinstance(leaf, Spec | torch.Tensor) for leaf in tree_leaves(made)):
        raise ModelArgumentError(
            f"inputs is a shape such as (4, 1, 256, 256), a Spec, a tensor or a tuple of them, "
            f"not {inputs!r}"
        )
    return made, {}


def _name(optimizer: Any) -> str:
    if optimizer is None:
        return ""
    if isinstance(optimizer, torch.optim.Optimizer):
        return type(optimizer).__name__
    function = getattr(optimizer, "func", optimizer)  # of a partial
    momentum = getattr(optimizer, "keywords", {}).get("momentum")
    return getattr(function, "__name__", "optimizer") + (" with momentum" if momentum else "")


def _last(trace: Trace, name: str) -> int:
    return max(index for index, mark in enumerate(trace.marks) if mark.name == name)


def _categories(peak: Peak, ddp: bool) -> dict[str, int]:
    sums: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    if ddp:
        sums["DDP buckets"] = 0
    for storage in peak.alive:
        is_bucket = storage.module.startswith(PREFIX)
        sums["DDP buckets" if is_bucket else storage.category] += rounded(storage.n_bytes)
    return sums


def _stages(trace: Trace) -> tuple[Stage, ...]:
    """Return what comes before the steps, and the stages of the last of them."""
    usage = trace.in_use_bytes
    stages: list[Stage] = []
    first = 0
    marks = trace.marks
    last = _last(trace, "forward")
    for index, mark in enumerate(marks):
        if index < 2 or index >= last:
            stages.append(
                Stage(mark.name, usage[mark.event], max(usage[first : mark.event + 1], default=0))
            )
        first = mark.event + 1
    return tuple(stages)


def _inside(path: str, names: Sequence[str]) -> str:
    """Return the part of the model that a path belongs to."""
    best = ""
    for name in names:
        if (path == name or path.startswith(f"{name}.")) and len(name) > len(best):
            best = name
    return best


def _groups(model: nn.Module, trace: Trace) -> list[str]:
    """Return the parts that are told apart: what holds most of all is looked into."""
    modules = dict(model.named_modules())
    names = []
    for name, part in model.named_children():
        # A list of modules does nothing itself.
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


def _parts(model: nn.Module, trace: Trace, names: Sequence[str], held: Peak) -> tuple[Part, ...]:
    modules = dict(model.named_modules())
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
        Part(
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
        sums[_inside(storage.module, names)][storage.category] += rounded(storage.n_bytes)


def _holders(model: nn.Module, peak: Peak, names: Sequence[str]) -> tuple[Holder, ...]:
    modules = dict(model.named_modules())
    groups: dict[str, list[Storage]] = {}
    for storage in peak.alive:
        if storage.category in ("input", "work area") or storage.module.startswith(PREFIX):
            continue
        is_state = storage.category == "optimizer state"
        owner = "optimizer" if is_state else _inside(storage.module, names)
        groups.setdefault(owner, []).append(storage)
    made = []
    for name, alive in groups.items():
        sums: dict[str, int] = {}
        for storage in alive:
            sums[storage.category] = sums.get(storage.category, 0) + rounded(storage.n_bytes)
        largest = max(alive, key=lambda storage: storage.n_bytes)
        category = max(sums, key=lambda each: sums[each])
        total = sum(sums.values())
        where = f" at {os.path.basename(largest.line)}" if largest.line and not name else ""
        what = (
            f"{sums[category] / total:.0%} {_word(category)}; the largest tensor is "
            f"{'x'.join(map(str, largest.shape)) or 'a scalar'} {largest.dtype}{where}"
        )
        kind = type(modules[name]).__name__ if name in modules else "state"
        made.append(Holder(name, kind, total, what))
    return tuple(sorted(made, key=lambda holder: -holder.n_bytes)[:LARGEST])


def _word(category: str) -> str:
    return "gradients in passing" if category == "temporary" else category


def _at_full_size(peak: Peak, given: Sequence[Any]) -> float:
    """Return the part of the activations whose spatial shape is that of the first input."""
    first = next((i for i in given if isinstance(i, Spec | torch.Tensor)), None)
    if first is None or len(first.shape) < 4:
        return 0.0
    spatial = tuple(first.shape[2:])
    activations = [s for s in peak.alive if s.category == "activations"]
    total = sum(s.n_bytes for s in activations)
    full = sum(s.n_bytes for s in activations if tuple(s.shape[2:]) == spatial)
    return full / total if total else 0.0
