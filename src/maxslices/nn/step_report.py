"""Where the memory of a step goes: by what it is held for, stage by stage, module by module."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..model.account import CONTEXT_BYTES
from .batch import make_step
from .breakdown import (
    Holder,
    Part,
    Stage,
    categories_of,
    groups_of,
    holders_of,
    last_mark,
    part_at_full_size,
    parts_of,
    stages_of,
)
from .ddp_buckets import add_buckets
from .memory_budget import Budget, budget_of
from .model_arguments import is_shape
from .nn_errors import ModelArgumentError
from .replay import Peak, Spec, Trace, WorkAreas
from .savings import Saving, savings_of
from .training_step import Mode, shape_text
from .workspace_cache import measured_areas


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
        from .report_text import report_text

        return report_text(self)

    def as_json(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        from .report_text import report_json

        return report_json(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw memory over the step to an image file; needs matplotlib."""
        from .report_plot import plot_report

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
    names = groups_of(model, trace)
    after = trace.marks[last_mark(trace, "forward")].event
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
        categories_of(trace.peak, ddp),
        trace.peak_bytes,
        trace.reserved_bytes,
        trace.needed_bytes,
        CONTEXT_BYTES,
        areas.origin,
        stages_of(trace),
        parts_of(model, trace, names, held),
        holders_of(model, trace.peak, names),
        savings_of(step, given, named, areas, trace, change),
        part_at_full_size(trace.peak, given),
        None if memory is None else budget_of(model, None, memory),
    )


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments, shapes replaced by `Spec`."""

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
