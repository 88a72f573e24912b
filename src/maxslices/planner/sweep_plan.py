"""The plan of a sweep: what runs once, what runs for each value, and the pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.arrays import ArraySpec
from ..core.units import format_bytes
from .plan import Plan
from .plan_table import headed, section_lines, wrapped

SHOWN_VALUES = 6
"""Values that a plan lists before it leaves some out."""


@dataclass(frozen=True, slots=True, repr=False)
class SweepPlan(Plan):
    """A plan whose last sections run once for each value of a parameter.

    `sections` holds those that run once, then those for one value.
    """

    parameter: str = ""
    """The parameter, such as ``fbp.center``."""
    values: tuple[Any, ...] = ()
    """Its values."""
    rows: tuple[int, int] = (0, 0)
    """First row that is read and the one after the last, counted within the loader's preview."""
    why_rows: tuple[str, ...] = ()
    """Reasons for their number."""
    n_before: int = 0
    """Sections that run once, before the swept step."""
    picture: ArraySpec | None = None
    """The pictures: (values, rows, columns)."""
    held_bytes: int = 0
    """Host memory for the data before the swept step, which are kept for all values."""
    pictures_bytes: int = 0
    """Host memory for the result of one value and what is kept of all: small pictures for the
    contact sheet, and the whole ones where they are not written to a folder."""

    @property
    def peak_bytes(self) -> int:
        """Most memory on the device at one time; on the CPU with what is held."""
        peak = self.estimated_bytes
        return peak if self.device != "cpu" else peak + self.held_bytes + self.pictures_bytes

    def __str__(self) -> str:
        lines = headed(
            self.scan, self.device, self.budget_bytes, self.reserved_bytes, self.host_budget_bytes
        )
        start, stop = self.rows
        n_rows = stop - start
        lines += [
            f"Sweep of {self.parameter} over {_counted(len(self.values), 'value')}: "
            f"{shown_values(self.values)}",
            f"Reads {_counted(n_rows, 'row')} in the middle, {start} to {stop - 1}: "
            f"{', '.join(self.why_rows)}",
        ]
        times = f"for each of {_counted(len(self.values), 'value')}"
        for number, section in enumerate(self.sections, start=1):
            first, *others = section_lines(number, section, self.device)
            when = "once" if number <= self.n_before else times
            lines += ["", f"{first}, {when}", *others]
        held = (
            f"Held in host memory: {format_bytes(self.held_bytes)} before {self.parameter}, "
            f"{format_bytes(self.pictures_bytes)} for pictures"
        )
        if self.device == "cpu":
            held += (
                f"; with the sections {format_bytes(self.peak_bytes)} of "
                f"{format_bytes(self.budget_bytes)}"
            )
        lines += ["", held, *self._closing_lines()]
        return wrapped(lines)


def shown_values(values: tuple[Any, ...]) -> str:
    """List values, without those in the middle where there are many."""
    texts = [value_text(value) for value in values]
    if len(texts) > SHOWN_VALUES:
        texts = [*texts[: SHOWN_VALUES - 2], "...", texts[-1]]
    return ", ".join(texts)


def value_text(value: Any) -> str:
    """Write a value as a label: numbers without needless digits."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
