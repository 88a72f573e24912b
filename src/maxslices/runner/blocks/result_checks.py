"""Checks of the frames and results of a section while it runs, and their warnings.

Results that are NaN or one value throughout, and flats that are not brighter than darks, raise no
error, and nothing is in the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...devices.non_finite import NonFiniteCount
from ...io import MemoryStore, SideName, Sink
from ...pipeline import Step
from .writer import Target

_SAMPLES = 64
"""Most rows and columns that are looked at: 0.1 ms for 20 frames, 0.03 ms for one row (one core,
2026-11-27). Of frames that differ by noise alone half of the pixels would be brighter."""


@dataclass(slots=True)
class FrameCheck:
    """Looks for a pixel that is brighter in the flats than in the darks."""

    n_looks: int = 0
    """How often frames were looked at."""
    has_beam: bool = False
    """Whether such a pixel was seen."""

    def look(self, means: Mapping[SideName, NDArray[np.float64]]) -> None:
        """Look at the sampled means of a block's flats and darks, of which either may be absent."""
        if "flats" in means:
            self.n_looks += 1
            self.has_beam |= bool((means["flats"] > means.get("darks", 0.0)).any())

    def merge(self, other: FrameCheck) -> None:
        """Add what another process saw."""
        self.n_looks += other.n_looks
        self.has_beam |= other.has_beam

    @property
    def warning(self) -> str | None:
        """What is wrong with the frames; None if nothing is known to be."""
        if self.has_beam or not self.n_looks:
            return None
        return (
            "no pixel of the flats is brighter than the darks: look at them with `maxslices info "
            "--picture`; the two may be exchanged, or were taken with the shutter closed"
        )


def sampled_mean(frames: NDArray[Any]) -> NDArray[np.float64]:
    """Mean of frames, (frames, detector_y, detector_x), at some of their pixels."""
    rows, columns = (slice(None, None, -(-n // _SAMPLES)) for n in frames.shape[1:])
    mean: NDArray[np.float64] = frames[:, rows, columns].mean(axis=0, dtype=np.float64)
    return mean


_AT_ONCE = 2**16
"""Pixels that are compared at one time. The first two that differ end the search, so that a
picture costs one such part, and only a result without one is read whole."""


class ConstantCheck:
    """Looks for two different values in a result, block by block."""

    def __init__(self) -> None:
        self._is_varied = self._has_nan = False
        self._value: Any = None

    def look(self, block: NDArray[Any]) -> None:
        """Look at a block of the result."""
        for frame in _from_the_middle(block) if not self._is_varied else ():
            step = max(1, _AT_ONCE // max(1, frame[0].size))
            for row in range(0, len(frame), step):
                self._look_at(frame[row : row + step])
                if self._is_varied:
                    return

    def _look_at(self, part: NDArray[Any]) -> None:
        if part.dtype.kind == "f":
            nan = np.isnan(part)
            if nan.any():
                self._has_nan = True
                part = part[~nan]
        if not part.size:
            return
        if self._value is None:
            self._value = part.flat[0]
        self._is_varied = bool((part != self._value).any())

    def merge(self, other: ConstantCheck) -> None:
        """Add what another check saw of the same result."""
        known = self._value is not None and other._value is not None
        self._is_varied |= other._is_varied or (known and bool(self._value != other._value))
        self._has_nan |= other._has_nan
        if self._value is None:
            self._value = other._value

    @property
    def warning(self) -> str | None:
        """What is wrong with the result, as the end of a sentence; None for a picture."""
        if self._is_varied or (self._value is None and not self._has_nan):
            return None
        if self._value is None:
            what = "NaN"
        else:
            what = f"{self._value:g}" + (" or NaN" if self._has_nan else "")
        return f"is {what} throughout: look at the scan, its flats and darks and the parameters"


def _from_the_middle(block: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Frames of a block from its middle on: outer ones may lie outside of a circular mask."""
    middle = len(block) // 2
    yield from block[middle:]
    yield from block[:middle]


@dataclass(frozen=True, slots=True)
class SeenResults:
    """What was seen of the results of some blocks."""

    checks: dict[int, ConstantCheck]
    """Index of a step that is saved -> whether its result is constant."""
    non_finite: NDArray[np.int64]
    """NaN and infinite values in the result of each step, shape (steps, 2)."""
    frames: FrameCheck
    """Whether flats are brighter than darks."""


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
        self.frames = FrameCheck()
        """Whether flats are brighter than darks."""

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
        return SeenResults(self._constant, self._counts.totals(), self.frames)

    def add_seen(self, seen: SeenResults) -> None:
        """Add what another process saw of the results."""
        self._counts.add(seen.non_finite)
        self.frames.merge(seen.frames)
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
        said = [self.frames.warning] if self.frames.warning else []
        said += [f"{name} {warning}" for name, warning in found.items() if warning]
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
