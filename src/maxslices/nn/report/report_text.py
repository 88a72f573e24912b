"""Text and JSON of a `MemoryReport`."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from ...core.units import format_bytes
from ..fit.answers import FEWER
from .breakdown import ReportFigures

WIDTH = 88
_NAMES = {
    "weights": "weights and buffers",
    "temporary": "gradients in passing",
    "workspace": "workspaces",
}
"""Names of categories where the text uses a longer one."""


def report_text(report: ReportFigures) -> str:
    """Whole text of a report."""
    blocks = [_head(report), _peak(report), _stages(report), _parts(report), _why(report)]
    return "\n\n".join(block for block in blocks if block)


def _head(report: ReportFigures) -> str:
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


def _reserve(report: ReportFigures, limit_bytes: int) -> str:
    """Line on the memory that is left, next to that which `max_batch_size` leaves."""
    part = report.needed_bytes / limit_bytes
    text = f"  {part:.0%} of that is needed"
    if part <= report.safety_factor:
        return f"{text}, within the safety factor of {report.safety_factor:g}"
    return (
        f"{text}; the safety factor of {report.safety_factor:g} leaves more: the largest batch "
        "(nn batch) may be smaller"
    )


def _is_squeezed(report: ReportFigures) -> bool:
    """True if the step fits only with slower kernels, whose workspaces are smaller."""
    limit = 0 if report.budget is None else report.budget.limit_bytes
    return bool(report.fits) and report.allocated_bytes > limit


def _peak(report: ReportFigures) -> str:
    peak = report.peak
    where = f" in {peak.module}" if peak.module else ""
    lines = [f"At the peak, in the stage {peak.stage!r}{where}"]
    rows = [(_NAMES.get(name, name), n) for name, n in report.categories.items() if n]
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


def _stages(report: ReportFigures) -> str:
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


def _parts(report: ReportFigures) -> str:
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


def _why(report: ReportFigures) -> str:
    """Text on what holds the memory."""
    categories = report.categories
    weights = categories["weights"]
    largest = max(categories, key=lambda name: categories[name])
    total = max(1, report.allocated_bytes)
    sentences = [
        f"The parameters and buffers are {format_bytes(weights)}, and "
        f"{format_bytes(report.allocated_bytes)} are in use at the peak: "
        f"{categories[largest] / total:.0%} of that are {_NAMES.get(largest, largest)}."
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
        if report.at_full_size >= 0.05:
            sentences.append(
                f"{report.at_full_size:.0%} of them are as large in each axis as the input."
            )
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


def report_json(report: ReportFigures) -> dict[str, Any]:
    """Figures of a report in plain lists and dicts."""
    budget = report.budget
    return {
        "model": report.model,
        "parameters": report.n_parameters,
        "trainable": report.n_trainable,
        "inputs": list(report.inputs),
        "mode": report.mode,
        "optimizer": report.optimizer,
        "amp": report.amp,
        "ddp": report.ddp,
        "allocated_bytes": report.allocated_bytes,
        "reserved_bytes": report.reserved_bytes,
        "needed_bytes": report.needed_bytes,
        "context_bytes": report.context_bytes,
        "device_bytes": report.device_bytes,
        "fits": report.fits,
        "safety_factor": report.safety_factor,
        "limit_bytes": None if budget is None else budget.limit_bytes,
        "workspaces": report.workspaces,
        "notes": list(report.trace.notes),
        "categories": dict(report.categories),
        "stages": [asdict(stage) for stage in report.stages],
        "parts": [asdict(part) for part in report.parts],
        "holders": [asdict(holder) for holder in report.holders],
    }
