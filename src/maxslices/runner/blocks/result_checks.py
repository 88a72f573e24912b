"""Checks of the results of a section while it runs, and their warnings.

Results that are NaN or one value throughout raise no error, and nothing is in the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...devices.non_finite import NonFiniteCount
from ...io import MemoryStore, Sink
from ...pipeline import Step
from .result_queue import Target


@dataclass(slots=True)
class ConstantCheck:
    """Looks for two different values in a result, block by block."""

    low: float = np.nan
    """Least value; NaN if there was no other."""
    high: float = np.nan
    """Largest value; NaN if there was no other."""
    is_seen: bool = False
    """Whether there was a value."""

    def look(self, block: NDArray[Any]) -> None:
        """Look at the frames of a block, up to the first with two values."""
        parts = (block.real, block.imag) if np.iscomplexobj(block) else (block,)
        for frame in (frame for part in parts for frame in part if frame.size):
            if self.low < self.high:
                return
            least, most = (f.reduce(frame, axis=None) for f in (np.fmin, np.fmax))
            self.merge(ConstantCheck(float(least), float(most), True))

    def merge(self, other: ConstantCheck) -> None:
        """Add what another check saw of the same result."""
        self.low = float(np.fmin(self.low, other.low))
        self.high = float(np.fmax(self.high, other.high))
        self.is_seen |= other.is_seen

    @property
    def warning(self) -> str | None:
        """What is wrong with the result, as the end of a sentence; None for a picture."""
        if self.low < self.high or not self.is_seen:
            return None
        what = "NaN" if np.isnan(self.low) else f"{self.low:g}"
        return f"is {what} throughout: look at the scan, its flats and darks and the parameters"


@dataclass(frozen=True, slots=True)
class SeenResults:
    """What was seen of the results of some blocks."""

    checks: dict[int, ConstantCheck]
    """Index of a step that is saved -> whether its result is constant."""
    non_finite: NDArray[np.int64]
    """NaN and infinite values in the result of each step, shape (steps, 2)."""


class ResultChecks:
    """Counts NaN and infinite values after each step, and looks for results of one value.

    Parameters
    ----------
    steps : sequence of Step
        The methods of the section.
    sinks : mapping of int to Sink
        Index of a step -> where its output is saved.
    given_non_finite : (int, int)
        NaN and infinite values in the section's input, as far as they were counted.
    """

    def __init__(
        self, steps: Sequence[Step], sinks: Mapping[int, Sink], given_non_finite: tuple[int, int]
    ) -> None:
        self._steps, self._sinks, self._given = steps, sinks, given_non_finite
        self._constant = {index: ConstantCheck() for index in sinks}
        self._counts = NonFiniteCount(len(steps))

    def look(self, index: int, data: Any) -> None:
        """Count the NaN and infinite values in what a step made of a block."""
        self._counts.look(index, data)

    def written(self, target: Target, data: NDArray[Any]) -> None:
        """Look at what was written to a target, if it is a saved result."""
        for index, sink in self._sinks.items():
            if sink is target:
                self._constant[index].look(data)

    @property
    def seen(self) -> SeenResults:
        """What was seen so far, for the checks of another process."""
        return SeenResults(self._constant, self._counts.totals())

    def add_seen(self, seen: SeenResults) -> None:
        """Add what another process saw of the results."""
        self._counts.add(seen.non_finite)
        for index, check in seen.checks.items():
            self._constant[index].merge(check)

    @property
    def non_finite(self) -> tuple[int, int]:
        """NaN and infinite values in the section's output."""
        return ([self._given] + [count for _, count in self._of_steps()])[-1]

    def warnings(self, store: object) -> tuple[str, ...]:
        """What is wrong with the results that were written, also to a store in memory."""
        found = {self._sinks[i].path.name: check.warning for i, check in self._constant.items()}
        if isinstance(store, MemoryStore):
            in_memory = ConstantCheck()
            in_memory.look(store.array)
            found[f"the output of {self._steps[-1].meta.name}"] = in_memory.warning
        said = [f"{name} {warning}" for name, warning in found.items() if warning]
        before = self._given
        for name, (nan, infinite) in self._of_steps():
            if nan > before[0] or infinite > before[1]:
                said.append(
                    f"the result of {name} has {nan:,} NaN and {infinite:,} infinite "
                    "values: they are left as they are"
                )
            before = nan, infinite
        return tuple(said)

    def _of_steps(self) -> list[tuple[str, tuple[int, int]]]:
        """Method and counts of each step that makes data."""
        counts = self._counts.totals().tolist()
        return [
            (step.meta.name, (nan, infinite))
            for step, (nan, infinite) in zip(self._steps, counts, strict=True)
            if not step.meta.side_results and step.meta.side_data != "alone"
        ]
