"""Report of a step's memory: its figures, as text, as JSON and as a snapshot."""

from __future__ import annotations

import os
import pickle
import textwrap
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ...core.units import format_bytes
from ..fit.answers import FEWER
from ..memory_budget import MemoryBudget
from ..replay import ReplayPeak, Trace
from ..replay.step_family import surely_fits
from .breakdown import NAMES, Holder, MemoryStage, ModelPart
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
    """Class of the optimizer; "" without one."""
    amp: str
    """Lower precision of autocast; "" without it."""
    ddp: bool
    trace: Trace
    """Replay of the step."""
    categories: dict[str, int]
    """Bytes at the peak by category; "DDP buckets" is one of them with `ddp`. The allocator's
    "unused ends of blocks" are up to 1 MiB of each larger block."""
    allocated_bytes: int
    """Peak of allocated memory: ``torch.cuda.max_memory_allocated``."""
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
    """Budget of the card in `memory`; None without one."""

    @property
    def device_bytes(self) -> int:
        """Memory of the process on the card: reserved, and CUDA's context."""
        return self.reserved_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """True if the step runs on the card in `memory`; None without one."""
        return None if self.budget is None else surely_fits(self.trace, self.budget.limit_bytes)

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
        """Write the step as a memory snapshot of torch, which pytorch.org/memory_viz opens.

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
    """Line on the memory that is left, next to that which `max_batch_size` leaves."""
    part = report.needed_bytes / limit_bytes
    text = f"  {part:.0%} of that is needed"
    if part <= report.safety_factor:
        return f"{text}, within the safety factor of {report.safety_factor:g}"
    return (
        f"{text}; the safety factor of {report.safety_factor:g} leaves more: the largest batch "
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
    lines.append(f"  (workspaces: {report.workspaces}; the context is allowed for)")
    lines += [line for note in report.trace.notes for line in _wrapped(f"({note})")]
    return "\n".join(lines)


def _stages(report: MemoryReport) -> str:
    lines = [
        "Stage by stage (at its end: torch.cuda.memory_allocated(); in MiB: that / 2**20)",
        f"  {'':<12}{'most':>10}{'at its end':>12}{'in MiB':>12}{'reserved':>12}",
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
        "Part by part (held: kept for the backward pass; after it: in use when it returned)",
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
    """Text on what holds the memory."""
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
            "They are the results of layers, kept until the backward pass has used them; they "
            "grow with the batch and with the size of the images, not with the number of "
            "parameters."
            if report.mode != "inference"
            else "They are results of layers that others still need."
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
