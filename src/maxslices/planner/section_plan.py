"""The sections of a plan: methods that share blocks, and their tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.arrays import SLICE_NAMES, ArraySpec
from ..core.block_memory import Destination, Origin
from ..core.units import format_bytes
from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One method within a section."""

    index: int
    """Position in the pipeline, from 0."""
    method: str
    """Full name, ``module.name``."""
    parameters: dict[str, Any]
    """The user's parameters, with references as in a pipeline file."""
    input: ArraySpec
    """The whole array before it."""
    output: ArraySpec
    """The whole array after it."""
    estimated_bytes: int
    """Its peak for one block of the plan, including the halo."""
    estimator: str
    """Origin of the estimate: "declared" ("declared for CUDA" if it is for this device only),
    "recorded", "replayed" or "probed"."""
    planned_values: dict[str, Any] = field(default_factory=dict)
    """Values of references that the plan depends on. A run with other values is refused."""

    @property
    def name(self) -> str:
        """Plain name of the method."""
        return self.method.rsplit(".", 1)[-1]


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """Methods that run together, and their block."""

    steps: tuple[StepPlan, ...]
    """The methods, in order."""
    slice_dim: int
    """Axis of the slices: 0 projections, 1 sinograms."""
    n_slices: int
    """Number of all slices."""
    halo: tuple[int, int]
    """Slices (before, after) that are added to a block."""
    block: int
    """Slices in a block, without the halo."""
    max_block: int
    """Slices of the largest block that the budget allows."""
    why: str
    """Reason for the block, in words."""
    limiting_step: int
    """Position in the pipeline of the method with the highest peak."""
    side_bytes: int
    """Memory of flats and darks during a block."""
    estimated_bytes: int
    """Peak of a block on the device: methods, halo and side data."""
    available_bytes: int
    """Bytes on the device that a block may take."""
    host_bytes: int
    """Bytes of host memory of the runner during the section, including stores."""
    stored_bytes: int
    """Bytes of its whole input and output if they are on the device."""
    origin: Origin
    """Origin of its data: the "scan", the "device", "memory" or a "scratch file"."""
    destination: Destination
    """Destination of its output: the "result", the "device", "memory", a "scratch file" or
    "nothing"."""
    kept_bytes: int = 0
    """Host memory for the first part of its output, if the rest is in a scratch file."""
    overlaps: bool = True
    """Whether the next block arrives and the last result leaves while a block is processed."""
    on_blocks: bool = True
    """Whether it runs on blocks, and not only on a few slices for side results."""
    multiple: int = 1
    """Blocks are a multiple of this number, because other blocks give another result."""

    @property
    def limited_by(self) -> str:
        """Name of the method with the highest peak."""
        return next(step.name for step in self.steps if step.index == self.limiting_step)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.n_slices // self.block)

    @property
    def input(self) -> ArraySpec:
        """The array that it reads."""
        return self.steps[0].input

    @property
    def output(self) -> ArraySpec:
        """The array that it makes."""
        return self.steps[-1].output


LONG_S = 3600.0
"""Least seconds of a run for a note: users may wait for shorter ones."""
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
    """Join lines to text of at most `WIDTH` columns. Longer lines are folded and indented."""
    wrapped_lines: list[str] = []
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
        wrapped_lines += [line] if len(line) <= WIDTH else folded
    return "\n".join(wrapped_lines)


def section_lines(number: int, section: SectionPlan, device: str) -> list[str]:
    """Table of a section's methods, with its memory."""
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
    stores_bytes = section.host_bytes - section.estimated_bytes
    if device == "cpu" and stores_bytes:
        host = f"; {format_bytes(stores_bytes)} of arrays between sections"
    lines.append(
        f"  peak {format_bytes(section.estimated_bytes)} of "
        f"{format_bytes(section.available_bytes)}{side}{host}; limited by {section.limited_by}"
    )
    lines.append(f"  {section.why}")
    return lines


def _kept(section: SectionPlan) -> str:
    """The part of a scratch file that is in memory, in words."""
    if not section.kept_bytes:
        return ""
    is_all = section.kept_bytes == section.output.nbytes
    return " in memory" if is_all else f", {format_bytes(section.kept_bytes)} of it in memory"


def _plural(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def check_sections(sections: Sequence[SectionPlan], usable_bytes: int) -> None:
    """Check that sections, blocks, arrays and budgets are consistent.

    This does not check whether the plan is for the present pipeline, or its estimates are right.

    Parameters
    ----------
    sections : sequence of SectionPlan
        The sections, in order.
    usable_bytes : int
        The plan's budget on the device without its reserved part.

    Raises
    ------
    UsageError
        Naming the first inconsistent field.
    """
    _require(bool(sections), "sections", "a list of at least one section", [])
    n_steps, before = 0, None
    for number, section in enumerate(sections):
        where = f"sections[{number}]"
        _check_steps(section, where, n_steps)
        n_steps += len(section.steps)
        if before is not None:
            where_input = f"{where}.steps[0].input"
            _require(section.input == before.output, where_input, str(before.output), section.input)
        _check_blocks(section, where)
        _check_bytes(section, where, usable_bytes)
        _check_places(section, where, before, is_last=number == len(sections) - 1)
        before = section


def _check_steps(section: SectionPlan, where: str, first_index: int) -> None:
    _require(bool(section.steps), f"{where}.steps", "a list of at least one step", [])
    for number, step in enumerate(section.steps):
        place, index = f"{where}.steps[{number}]", first_index + number
        _require(step.index == index, f"{place}.index", str(index), step.index)
        if number:
            previous = section.steps[number - 1].output
            _require(step.input == previous, f"{place}.input", str(previous), step.input)
    indices = [step.index for step in section.steps]
    wanted = f"one of {', '.join(map(str, indices))}"
    _require(
        section.limiting_step in indices, f"{where}.limiting_step", wanted, section.limiting_step
    )
    _require(section.slice_dim in (0, 1), f"{where}.slice_dim", "0 or 1", section.slice_dim)


def _check_blocks(section: SectionPlan, where: str) -> None:
    total = section.input.shape[section.slice_dim]
    _require(section.n_slices == total, f"{where}.n_slices", str(total), section.n_slices)
    _require(min(section.halo) >= 0, f"{where}.halo", "at least 0", section.halo)
    for name, least in (("block", 1), ("max_block", section.block)):
        n = getattr(section, name)
        _require(least <= n <= total, f"{where}.{name}", f"a number from {least} to {total}", n)


def _check_bytes(section: SectionPlan, where: str, usable_bytes: int) -> None:
    available, estimated = section.available_bytes, section.estimated_bytes
    wanted = f"at most {usable_bytes}, the budget without the reserved part"
    _require(available <= usable_bytes, f"{where}.available_bytes", wanted, available)
    wanted = f"at most {available}, the available bytes"
    _require(estimated <= available, f"{where}.estimated_bytes", wanted, estimated)


def _check_places(
    section: SectionPlan, where: str, before: SectionPlan | None, *, is_last: bool
) -> None:
    origin = "scan" if before is None else before.destination
    _require(section.origin == origin, f"{where}.origin", repr(origin), section.origin)
    possible = ("memory", "result", "nothing") if is_last else ("device", "memory", "scratch file")
    wanted = f"one of {', '.join(map(repr, possible))}"
    goes = section.destination
    _require(goes in possible, f"{where}.destination", wanted, goes)
    idle = section.on_blocks or goes == "nothing"
    _require(idle, f"{where}.on_blocks", "true if its output is kept", section.on_blocks)
    most = section.output.nbytes if goes == "scratch file" else 0
    kept = section.kept_bytes
    _require(kept <= most, f"{where}.kept_bytes", f"at most {most}", kept)


def _require(holds: bool, where: str, wanted: str, value: object) -> None:
    if not holds:
        raise UsageError(f"plan.{where} must be {wanted}, not {value}")
