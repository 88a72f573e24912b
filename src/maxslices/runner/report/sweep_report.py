"""Report of a sweep: the report of a run, with the values, their sharpness and a suggestion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.json_values import plain
from ...planner.plan import value_text
from .run_report import Report, SectionReport

MEASURE = "gradient sparsity"
"""Name of the measure of sharpness; see `maxslices.runner.sweep_pictures.sharpness`."""
BEST = 3
"""Values that a report lists, the sharpest first."""


@dataclass(frozen=True, slots=True, repr=False)
class SweepReport(Report):
    """What a sweep did.

    `sections` holds those that ran once, then those of the values, each for all values together;
    `result` holds the pictures (values, rows, columns), where they were kept in memory.
    """

    parameter: str = ""
    """The parameter, such as ``fbp.center``."""
    values: tuple[Any, ...] = ()
    """Its values, in the order of the pictures."""
    sharpness: tuple[float, ...] = ()
    """Sharpness of each picture; see `maxslices.runner.sweep_pictures.sharpness`."""

    @property
    def sharpest(self) -> int:
        """Index of the value with the sharpest picture."""
        return max(range(len(self.values)), key=lambda i: self.sharpness[i])

    @property
    def suggested(self) -> Any:
        """The value with the sharpest picture: a suggestion to look at, and no more."""
        return self.values[self.sharpest]

    def _picture(self, result: np.ndarray) -> tuple[str, np.ndarray]:
        """Title and picture of the sharpest value."""
        return f"{self.parameter} = {value_text(self.suggested)}", result[self.sharpest]

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to plain types, ready for JSON."""
        return {
            **Report.to_dict(self),
            "sweep": {
                "parameter": self.parameter,
                "values": plain(self.values),
                "measure": MEASURE,
                "sharpness": plain(self.sharpness),
                "suggested": plain(self.suggested),
            },
        }

    def __str__(self) -> str:
        ranked = sorted(range(len(self.values)), key=lambda i: -self.sharpness[i])[:BEST]
        shown = ", ".join(f"{value_text(self.values[i])} ({self.sharpness[i]:.4g})" for i in ranked)
        return (
            f"{Report.__str__(self)}\n"
            f"  sharpest of {len(self.values):,} by {MEASURE}: {self.parameter} = {shown}\n"
            "    a suggestion: less smoothing looks sharper too, noise included; look at the sheet"
        )


def together(reports: Sequence[Sequence[SectionReport]]) -> list[SectionReport]:
    """Join the section reports of all values: times add up, of the memory the most counts."""
    found = []
    for parts in zip(*reports, strict=True):
        measured = [part.measured_bytes for part in parts if part.measured_bytes is not None]
        worst = max(parts, key=lambda part: part.ratio or 0)
        found.append(
            replace(
                worst,
                n_slices=sum(part.n_slices for part in parts),
                smallest_block=min(part.smallest_block for part in parts),
                n_splits=sum(part.n_splits for part in parts),
                duration_s=sum(part.duration_s for part in parts),
                measured_bytes=worst.measured_bytes if measured else None,
                stages={},
                idle_share=None,
                bound_by=None,
                notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
                warnings=tuple(dict.fromkeys(text for part in parts for text in part.warnings)),
            )
        )
    return found
