"""Checks that the numbers of a plan make sense, as it may have been edited or written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from .section_plan import SectionPlan


def check_sections(sections: Sequence[SectionPlan], usable_bytes: int) -> None:
    """Check that sections follow from each other, blocks from arrays, and bytes from budgets.

    Whether a plan is for the pipeline at hand, or its estimates are right, is not checked here.

    Parameters
    ----------
    sections : sequence of SectionPlan
        The sections, in order.
    usable_bytes : int
        The plan's budget on the device, less what is reserved of it.

    Raises
    ------
    UsageError
        Naming the first field at fault.
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
    wanted = f"at most {usable_bytes}, the budget less what is reserved"
    _require(available <= usable_bytes, f"{where}.available_bytes", wanted, available)
    wanted = f"at most {available}, as available"
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
    _require(idle, f"{where}.on_blocks", "true where an output is kept", section.on_blocks)
    most = section.output.nbytes if goes == "scratch file" else 0
    kept = section.kept_bytes
    _require(kept <= most, f"{where}.kept_bytes", f"at most {most}", kept)


def _require(holds: bool, where: str, wanted: str, value: object) -> None:
    if not holds:
        raise UsageError(f"plan.{where} must be {wanted}, not {value}")
