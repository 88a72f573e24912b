"""A plan as text: tables of at most 100 columns."""

from __future__ import annotations

import textwrap

from ..core.arrays import SLICE_NAMES
from ..core.units import format_bytes
from .section_plan import SectionPlan

WIDTH = 100
"""Columns of a table, as wide as lines of code."""
_KEPT = {"nothing": "nothing is kept"}
"""Destinations whose text differs from their name."""


def headed(
    scan: str, device: str, budget_bytes: int, reserved_bytes: int, host_budget_bytes: int
) -> list[str]:
    """First lines of a plan: the scan, the device and its budgets."""
    line = f"Device {device}: {format_bytes(budget_bytes)} allowed"
    if reserved_bytes:
        line += f", {format_bytes(reserved_bytes)} of it for the CUDA context"
    if device != "cpu":
        line += f"; host memory {format_bytes(host_budget_bytes)} allowed"
    return [f"Plan for {scan}", line]


def wrapped(lines: list[str]) -> str:
    """Text of at most `WIDTH` columns; longer lines are folded and indented."""
    found: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        folded = textwrap.wrap(
            line,
            WIDTH,
            subsequent_indent=indent,
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
        )
        found += [line] if len(line) <= WIDTH else folded
    return "\n".join(found)


def section_lines(number: int, section: SectionPlan, device: str) -> list[str]:
    """Table of a section's methods, with the memory that it takes."""
    halo = f", halo {section.halo[0]}+{section.halo[1]}" if any(section.halo) else ""
    slices = _plural(section.n_slices, SLICE_NAMES[section.slice_dim])
    blocks = _plural(section.n_blocks, "block")
    names = max(26, *(len(step.name) for step in section.steps))
    outputs = max(24, *(len(str(step.output)) for step in section.steps))
    lines = [
        f"Section {number}: {slices} in {blocks} of {section.block}{halo} "
        f"-> {_KEPT.get(section.destination, section.destination)}{_kept(section)}",
        f"  {'method':<{names}}  {'output':<{outputs}}  {'peak/block':>10}  estimate",
    ]
    highest = max(section.steps, key=lambda step: step.estimated_bytes)
    for step in section.steps:
        mark = "*" if step is highest else " "
        lines.append(
            f" {mark}{step.name:<{names}}  {step.output!s:<{outputs}}  "
            f"{format_bytes(step.estimated_bytes):>10}  {step.estimator}"
        )
    side = f", {format_bytes(section.side_bytes)} of flats and darks" if section.side_bytes else ""
    host = "" if device == "cpu" else f"; host memory {format_bytes(section.host_bytes)}"
    beside = section.host_bytes - section.estimated_bytes
    if device == "cpu" and beside:
        host = f"; {format_bytes(beside)} of arrays between sections"
    lines.append(
        f"  peak {format_bytes(section.estimated_bytes)} of "
        f"{format_bytes(section.available_bytes)}{side}{host}; limited by {section.limited_by}"
    )
    lines.append(f"  {section.why}")
    return lines


def _kept(section: SectionPlan) -> str:
    """What of a scratch file is in memory."""
    if not section.kept_bytes:
        return ""
    is_all = section.kept_bytes == section.output.nbytes
    return " in memory" if is_all else f", {format_bytes(section.kept_bytes)} of it in memory"


def _plural(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
