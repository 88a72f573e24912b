"""Report of a step's memory: its figures, as text, as JSON and as a snapshot."""

from __future__ import annotations

import os
import pickle
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.block_memory import CONTEXT_BYTES
from ...core.units import format_bytes
from ...tuning.garbage_collection import quick_collections
from ..fit.answers import FEWER
from ..fit.largest import make_step
from ..memory_budget import MemoryBudget, budget_of, capability_of, device_of
from ..replay import ReplayPeak, Trace, Workspaces
from ..replay.measure_workspaces import measured_workspaces
from ..replay.nested import leaves
from ..replay.replay_step import Mode
from ..replay.step_family import fits_any_workspace
from ..replay.trace import block_tail_slack_bytes
from ..step.call_inputs import SAFETY_FACTOR, CallInputs, is_sized
from ..step.model_step import shape_text
from .breakdown import (
    NAMES,
    Holder,
    MemoryStage,
    ModelPart,
    add_buckets,
    categories_of,
    groups_of,
    holders_of,
    last_forward,
    parts_of,
    stages_of,
)
from .snapshot import snapshot_of

WIDTH = 88


@dataclass(frozen=True, eq=False)
class MemoryReport:
    """Memory of a step. ``print`` shows it as text."""

    model: str
    """Class of the model."""
    n_parameters: int
    n_trainable: int
    """Parameters with a gradient."""
    inputs: tuple[str, ...]
    """Shapes and dtypes."""
    mode: str
    optimizer: str
    """Class of the optimizer, or ""."""
    amp: str
    """Lower precision of autocast, or ""."""
    ddp: bool
    trace: Trace
    """Replay of the step."""
    categories: dict[str, int]
    """Bytes at the peak by category, with `ddp` including "DDP buckets". The allocator's "unused
    ends of blocks" are up to 1 MiB of each larger block."""
    allocated_bytes: int
    """Peak of allocated memory, as ``torch.cuda.max_memory_allocated`` reports."""
    reserved_bytes: int
    """Peak of memory held by the allocator without a limit."""
    needed_bytes: int
    """Smallest limit of the allocator under which the step runs."""
    context_bytes: int
    """Memory of CUDA's context."""
    workspaces: str
    """Source of the workspace sizes of the libraries."""
    stages: tuple[MemoryStage, ...]
    parts: tuple[ModelPart, ...]
    holders: tuple[Holder, ...]
    safety_factor: float
    """Part of the memory that `max_batch_size` uses."""
    budget: MemoryBudget | None = field(default=None, repr=False)
    """Budget of the card in `memory`, or None."""

    @property
    def device_bytes(self) -> int:
        """Memory of the process on the card: reserved memory and CUDA's context."""
        return self.reserved_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """True if the step runs on the card in `memory`; None without a card."""
        return (
            None if self.budget is None else fits_any_workspace(self.trace, self.budget.limit_bytes)
        )

    @property
    def peak(self) -> ReplayPeak:
        """Allocations alive at the peak."""
        return self.trace.peak

    def __str__(self) -> str:
        blocks = [_head(self), _peak(self), _stages(self), _parts(self), _why(self)]
        return "\n\n".join(block for block in blocks if block)

    def to_dict(self) -> dict[str, Any]:
        """Figures in plain lists and dicts."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        del plain["trace"], plain["budget"]
        return {
            "parameters": plain.pop("n_parameters"),
            "trainable": plain.pop("n_trainable"),
            **plain,
            "inputs": list(self.inputs),
            "device_bytes": self.device_bytes,
            "fits": self.fits,
            "limit_bytes": None if self.budget is None else self.budget.limit_bytes,
            "notes": list(self.trace.notes),
            "stages": [asdict(stage) for stage in self.stages],
            "parts": [asdict(part) for part in self.parts],
            "holders": [asdict(holder) for holder in self.holders],
        }

    def write_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the step as a memory snapshot of torch, for pytorch.org/memory_viz.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        Path(path).write_bytes(pickle.dumps(snapshot_of(self.trace)))


def _head(report: MemoryReport) -> str:
    what = {"training": "a step of training", "forward": "a forward pass with gradients"}
    text = f"{report.model}: {what.get(report.mode, 'inference')}"
    if report.optimizer:
        text += f" with {report.optimizer}"
    if report.amp:
        text += f", autocast to {report.amp}"
    if report.ddp:
        text += ", DistributedDataParallel"
    lines = [
        text,
        f"{report.n_parameters:,} parameters, {report.n_trainable:,} of them trainable; input "
        + " and ".join(report.inputs),
    ]
    if report.budget is not None:
        limit = report.budget.limit_bytes
        lines.append(
            f"{'Fits' if report.fits else 'Does not fit'}: {format_bytes(report.allocated_bytes)} "
            f"in use at the peak{FEWER if _is_squeezed(report) else ''}, and there are "
            f"{format_bytes(limit)} ({report.budget.origin})"
        )
        if report.fits:
            lines.append(_reserve(report, limit))
    return "\n".join(lines)


def _reserve(report: MemoryReport, limit_bytes: int) -> str:
    """Line that compares the needed part of the memory with the safety factor."""
    part = report.needed_bytes / limit_bytes
    text = f"  {part:.0%} of the memory is needed"
    if part <= report.safety_factor:
        return f"{text}, within the safety factor of {report.safety_factor:g}"
    return (
        f"{text}, above the safety factor of {report.safety_factor:g}: the largest batch "
        "(nn batch) may be smaller"
    )


def _is_squeezed(report: MemoryReport) -> bool:
    """True if the step fits only with slower kernels, whose workspaces are smaller."""
    limit = 0 if report.budget is None else report.budget.limit_bytes
    return bool(report.fits) and report.allocated_bytes > limit


def _peak(report: MemoryReport) -> str:
    peak = report.peak
    where = f" in {peak.module}" if peak.module else ""
    lines = [f"At the peak, in the stage {peak.stage!r}{where}"]
    rows = [(NAMES.get(name, name), n) for name, n in report.categories.items() if n]
    rows.append(("allocated", report.allocated_bytes))
    rows.append(("reserved - allocated", report.reserved_bytes - report.allocated_bytes))
    rows.append(("CUDA context", report.context_bytes))
    rows.append(("on the card", report.device_bytes))
    for name, n_bytes in rows:
        part = f"{n_bytes / max(1, report.device_bytes):6.1%}"
        lines.append(f"  {name:<22}{format_bytes(n_bytes):>10}{part:>8}")
    lines.append(f"  (workspaces: {report.workspaces}; CUDA context: assumed)")
    lines += [line for note in report.trace.notes for line in _wrapped(f"({note})")]
    return "\n".join(lines)


def _stages(report: MemoryReport) -> str:
    lines = [
        "Stage by stage (at its end: torch.cuda.memory_allocated(); in MiB: that / 2**20)",
        f"  {'':<12}{'peak':>10}{'at its end':>12}{'in MiB':>12}{'reserved':>12}",
    ]
    lines += [
        f"  {stage.name:<12}{format_bytes(stage.peak_bytes):>10}{format_bytes(stage.end_bytes):>12}"
        f"{stage.end_bytes / 2**20:>12,.2f}{format_bytes(stage.reserved_bytes):>12}"
        for stage in report.stages
    ]
    return "\n".join(lines)


def _parts(report: MemoryReport) -> str:
    columns = ("weights", "gradients", "held", "after it")
    width = max([len(_part_name(part.path)) for part in report.parts] or [0]) + 2
    lines = [
        "Part by part (held: kept for the backward pass, after it: in use when it returned)",
        "  " + " " * width + "".join(f"{name:>11}" for name in columns),
    ]
    for part in report.parts:
        numbers = (
            part.weights_bytes,
            part.gradients_bytes,
            part.held_bytes,
            part.after_bytes,
        )
        cells = "".join(f"{format_bytes(n) if n else '-':>11}" for n in numbers)
        lines.append(f"  {_part_name(part.path):<{width}}{cells}")
    return "\n".join(lines)


def _part_name(path: str) -> str:
    return path or "(the model itself)"


def _why(report: MemoryReport) -> str:
    """Text on the largest category and the largest holders."""
    categories = report.categories
    weights = categories["weights"]
    largest = max(categories, key=lambda name: categories[name])
    total = max(1, report.allocated_bytes)
    sentences = [
        f"The parameters and buffers are {format_bytes(weights)}, and "
        f"{format_bytes(report.allocated_bytes)} are in use at the peak: "
        f"{categories[largest] / total:.0%} of that are {NAMES.get(largest, largest)}."
    ]
    if largest == "activations":
        kept = (
            "They are the results of layers, kept until the backward pass has used them. They "
            "grow with the batch and with the size of the images, not with the number of "
            "parameters."
            if report.mode != "inference"
            else "They are results of layers that later layers still need."
        )
        sentences.append(kept)
    lines = ["Why it takes so much", *_wrapped(" ".join(sentences)), ""]
    lines.append("The largest holders")
    lines += [
        f"  {format_bytes(holder.n_bytes):>9}  {_part_name(holder.path)} ({holder.kind}): "
        f"{holder.what}"
        for holder in report.holders
    ]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


@quick_collections()
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
    prediction_function: Callable[..., Any] | str | None = None,
    memory: str | int | None = None,
    device: torch.device | str | None = None,
    workspaces: Workspaces | None = None,
    keep_output: bool = True,
    accumulate: int = 1,
    step: Callable[..., Any] | None = None,
    optimizer_state_bytes: str | int | None = None,
    safety_factor: float = SAFETY_FACTOR,
) -> MemoryReport:
    """Report the memory of a step by category, stage and part of the model.

    Parameters
    ----------
    model : torch.nn.Module
        Model, which is not changed. Training is replayed in train mode, other steps in the model's
        mode.
    inputs : shape, Spec, tensor, or a tuple or mapping of them
        Arguments of the model. (4, 1, 256, 256) is one input of float32. A mapping, such as the
        result of a tokenizer, has keyword arguments.
    mode : {"training", "forward", "inference"}
        The second of two training steps, a forward pass with gradients, or the second of two
        forward passes without gradients.
    optimizer, loss, amp
        As for `max_batch_size`.
    ddp : bool
        Whether gradient buckets of ``DistributedDataParallel`` are included.
    targets : Spec, tensor, a tuple of them, or callable, optional
        Targets of the loss, or a function as for `max_batch_size`.
    prediction_function : callable or str, optional
        ``prediction_function(model, *inputs)``, or the name of a method of the model, called in
        place of the model.
    memory : str or int, optional
        Memory of a card, such as "24GB", or its name, such as "RTX 4090", for which the report
        states whether the step fits.
    device : torch.device or str, optional
        CUDA device on which workspaces are measured. By default those of an H200 are assumed.
    workspaces : Workspaces, optional
        Workspaces in place of measured ones and of the allowance.
    keep_output, accumulate, step, optimizer_state_bytes
        As for `max_batch_size`.
    safety_factor : float
        Part of the memory that `max_batch_size` would use.

    Returns
    -------
    MemoryReport
        Report, which ``print`` shows as text.

    Raises
    ------
    ModelArgumentError
        If an argument is invalid.
    TraceError
        If the model does not run on such inputs, or cannot be replayed without data. The message
        names the module or the line.
    """
    call = CallInputs.of(inputs)
    values = call.values
    wanted = targets if targets is None or callable(targets) else (lambda *_: targets)
    whole = make_step(
        model, mode, optimizer, loss, wanted, amp, prediction_function, keep_output, accumulate,
        step, optimizer_state_bytes,
    )  # fmt: skip
    on_device = None if device is None else torch.device(device)
    if on_device is not None and on_device.type == "cuda":
        on_device = device_of(model, on_device, memory)
    whole = replace(
        whole,
        evaluate=False,
        names=call.names,
        capability=capability_of(on_device, memory),
    )
    change = add_buckets if ddp and mode == "training" else None
    used_workspaces = Workspaces.allowance() if workspaces is None else workspaces
    trace = whole.trace(values, used_workspaces, change=change, lines=True)
    if workspaces is None and on_device is not None and on_device.type == "cuda":
        used_workspaces, _ = measured_workspaces(trace.calls, on_device)
        trace = trace.with_workspaces(used_workspaces)
    names = groups_of(model, trace)
    unused = block_tail_slack_bytes(trace)
    after = trace.marks[last_forward(trace)].event
    held = trace.moment(after)
    return MemoryReport(
        type(model).__name__,
        sum(p.numel() for p in model.parameters()),
        sum(p.numel() for p in model.parameters() if p.requires_grad),
        tuple(
            f"{shape_text(item)} {str(item.dtype).removeprefix('torch.')}"
            for item in leaves(values)
            if is_sized(item)
        ),
        mode,
        _name(whole.optimizer),
        "" if whole.amp is None else str(whole.amp).removeprefix("torch."),
        ddp,
        trace,
        {
            **categories_of(trace.peak, ddp),
            "unused tails of blocks": unused,
        },
        trace.peak_bytes + unused,
        max(trace.reserved_bytes, trace.peak_bytes + unused),
        max(trace.needed_bytes, trace.peak_bytes + unused),
        CONTEXT_BYTES,
        used_workspaces.origin,
        stages_of(trace),
        parts_of(model, trace, names, held),
        holders_of(model, trace.peak, names),
        safety_factor,
        None if memory is None else budget_of(model, None, memory),
    )


def _name(optimizer: Any) -> str:
    if optimizer is None:
        return ""
    if isinstance(optimizer, torch.optim.Optimizer):
        return type(optimizer).__name__
    function = getattr(optimizer, "func", optimizer)  # of a partial
    momentum = getattr(optimizer, "keywords", {}).get("momentum")
    return getattr(function, "__name__", "optimizer") + (" with momentum" if momentum else "")
