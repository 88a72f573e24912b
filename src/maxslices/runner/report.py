"""What a run did: beside each estimate the measured peak, and how long it took."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..planner import Plan, plain
from ..planner.table import wrapped
from ..units import format_bytes


@dataclass(frozen=True, slots=True)
class SectionReport:
    """One section, as it ran."""

    methods: tuple[str, ...]
    """Plain names, in order."""
    slice_dim: int
    """Axis of the slices: 0 projections, 1 sinograms."""
    n_slices: int
    """Slices in all."""
    block: int
    """Slices in a block, as planned."""
    smallest_block: int
    """Slices in a block at the end: fewer than planned where memory ran out."""
    n_splits: int
    """How many times the block was halved because memory ran out."""
    duration_s: float
    """Wall time."""
    estimated_bytes: int
    """Planned peak of a block on the device."""
    measured_bytes: int | None
    """Measured peak on the device, on the CPU that of the widest block; None where nothing
    could measure it."""
    unseen: tuple[str, ...] = ()
    """What the meters could not see; empty if they saw everything."""

    @property
    def slices_per_s(self) -> float:
        """Return slices a second."""
        return self.n_slices / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def ratio(self) -> float | None:
        """Return measured over estimated bytes; None if nothing was measured."""
        if self.measured_bytes is None or not self.estimated_bytes:
            return None
        return self.measured_bytes / self.estimated_bytes


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did."""

    plan: Plan
    """The plan that was run."""
    device: str
    """"cpu" or "cuda:N"."""
    sections: tuple[SectionReport, ...]
    """The sections, in order."""
    side_results: dict[str, Any]
    """Side results by ``method.name``, such as ``find_center_vo.cor``."""
    files: tuple[Path, ...]
    """Results that were written, the last one the final result."""
    duration_s: float
    """Wall time of everything."""
    result: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The final result, where it was kept in memory."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain types, ready for JSON."""
        return {
            "device": self.device,
            "duration_s": self.duration_s,
            "sections": [
                {**plain(dataclasses.asdict(s)), "slices_per_s": s.slices_per_s, "ratio": s.ratio}
                for s in self.sections
            ],
            "side_results": {k: plain(v) for k, v in self.side_results.items()},
            "files": [str(path) for path in self.files],
            "plan": self.plan.to_dict(),
        }

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        lines = [
            f"Ran on {self.device} in {self.duration_s:.1f} s",
            f"  {'section':<46}{'slices/s':>10}{'estimated':>12}{'measured':>12}{'ratio':>8}",
        ]
        for number, section in enumerate(self.sections, start=1):
            names = textwrap.wrap(f"{number} {', '.join(section.methods)}", 44) or [""]
            ratio = "-" if section.ratio is None else f"{100 * section.ratio:.0f} %"
            lines.append(
                f"  {names[0]:<46}{section.slices_per_s:>10.1f}"
                f"{format_bytes(section.estimated_bytes):>12}"
                f"{format_bytes(section.measured_bytes):>12}{ratio:>8}"
            )
            lines += [f"    {more}" for more in names[1:]]
            if section.n_splits:
                lines.append(
                    f"    memory ran out: the block was halved "
                    f"{'once' if section.n_splits == 1 else f'{section.n_splits} times'}, from "
                    f"{section.block} to {section.smallest_block} slices"
                )
        lines += [f"  {name} = {_short(value)}" for name, value in self.side_results.items()]
        lines += [f"  wrote {path}" for path in self.files]
        return wrapped(lines)


def _short(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{float(value):g}"
    text = str(plain(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
