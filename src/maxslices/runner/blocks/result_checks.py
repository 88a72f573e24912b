"""Checks of the results of a section while it runs.

A result that is NaN or constant raises no error, so the report warns of it.
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
    """Detects a constant result, block by block."""

    low: float = np.nan
    """Smallest value; NaN if all are NaN."""
    high: float = np.nan
    """Largest value; NaN if all are NaN."""
    is_seen: bool = False
    """Whether any value was seen."""

    def look(self, block: NDArray[Any]) -> None:
        """Check the frames of a block until there are two values."""
        parts = (block.real, block.imag) if np.iscomplexobj(block) else (block,)
        for frame in (frame for part in parts for frame in part if frame.size):
            if self.low < self.high:
                return
            least, most = (f.reduce(frame, axis=None) for f in (np.fmin, np.fmax))
            self.merge(ConstantCheck(float(least), float(most), True))

    def merge(self, other: ConstantCheck) -> None:
        """Include another check of the same result."""
        self.low = float(np.fmin(self.low, other.low))
        self.high = float(np.fmax(self.high, other.high))
        self.is_seen |= other.is_seen

    @property
    def warning(self) -> str | None:
        """The fault of the result, as the end of a sentence; None if it is not constant."""
        if self.low < self.high or not self.is_seen:
            return None
        value = "NaN" if np.isnan(self.low) else f"{self.low:g}"
        return f"is {value} throughout: check the scan, its flats and darks, and the parameters"


@dataclass(frozen=True, slots=True)
class SeenResults:
    """Checks of the results of some blocks."""

    checks: dict[int, ConstantCheck]
    """Index of a saved step -> the check of its result."""
    non_finite: NDArray[np.int64]
    """NaN and infinite values in the result of each step, shape (steps, 2)."""


class ResultChecks:
    """Counts NaN and infinite values after each step, and detects constant results.

    Parameters
    ----------
    steps : sequence of Step
        The methods of the section.
    sinks : mapping of int to Sink
        Index of a step -> the sink of its output.
    input_non_finite : (int, int)
        NaN and infinite values that were counted in the section's input.
    """

    def __init__(
        self, steps: Sequence[Step], sinks: Mapping[int, Sink], input_non_finite: tuple[int, int]
    ) -> None:
        self._steps, self._sinks, self._input = steps, sinks, input_non_finite
        self._constant = {index: ConstantCheck() for index in sinks}
        self._counts = NonFiniteCount(len(steps))

    def look(self, index: int, data: Any) -> None:
        """Count the NaN and infinite values in the result of a step."""
        self._counts.look(index, data)

    def written(self, target: Target, data: NDArray[Any]) -> None:
        """Check data that were written, if they belong to a saved result."""
        for index, sink in self._sinks.items():
            if sink is target:
                self._constant[index].look(data)

    @property
    def seen(self) -> SeenResults:
        """The checks so far, for another process."""
        return SeenResults(self._constant, self._counts.totals())

    def add_seen(self, seen: SeenResults) -> None:
        """Include the checks of another process."""
        self._counts.add(seen.non_finite)
        for index, check in seen.checks.items():
            self._constant[index].merge(check)

    @property
    def non_finite(self) -> tuple[int, int]:
        """NaN and infinite values in the section's output."""
        return ([self._input] + [count for _, count in self._of_steps()])[-1]

    def warnings(self, store: object) -> tuple[str, ...]:
        """Faults of the written results, also of a store in memory."""
        faults = {self._sinks[i].path.name: check.warning for i, check in self._constant.items()}
        if isinstance(store, MemoryStore):
            in_memory = ConstantCheck()
            in_memory.look(store.array)
            faults[f"the output of {self._steps[-1].meta.name}"] = in_memory.warning
        texts = [f"{name} {fault}" for name, fault in faults.items() if fault]
        before = self._input
        for name, (nan, infinite) in self._of_steps():
            if nan > before[0] or infinite > before[1]:
                texts.append(
                    f"the result of {name} has {nan:,} NaN and {infinite:,} infinite "
                    "values, which stay unchanged"
                )
            before = nan, infinite
        return tuple(texts)

    def _of_steps(self) -> list[tuple[str, tuple[int, int]]]:
        """Method and counts of each step that returns data."""
        counts = self._counts.totals().tolist()
        return [
            (step.meta.name, (nan, infinite))
            for step, (nan, infinite) in zip(self._steps, counts, strict=True)
            if not step.meta.side_results and step.meta.side_data != "alone"
        ]
