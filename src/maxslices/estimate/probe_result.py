"""What is found by running a method on a few slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..model.memory_model import MemoryModel
from ..model.units import format_bytes
from .bench import Rung


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found by running a method on a few slices."""

    points: tuple[tuple[int, int], ...]
    """(slices, bytes): the peak in straight lines between these, and beyond; never below the
    peak, what stays from call to call included."""
    kept: tuple[tuple[int, int], ...]
    """(slices, bytes) that stay after a call when its result is gone; empty if none do."""
    persistent_bytes: int
    """Part of every point: what the first call left for good."""
    rungs: tuple[Rung, ...]
    """What was run, in order, without the first call."""
    available_bytes: int
    """Memory for which the answer was sought."""
    total_slices: int
    """Most slices that are ever asked for."""
    answer: int
    """Slices that fit in it."""
    sure: bool
    """Whether it is measured or follows from a line, rather than being merely safe."""
    duration_s: float
    """Time that it took."""
    notes: tuple[str, ...] = ()
    """What was noticed, and what was done about it."""
    output_dtype: str | None = None
    """Dtype of the result; None where it is no block of slices."""
    output_dims: tuple[int, int] | None = None
    """The result's other two dims, in array order."""

    def model(self) -> MemoryModel:
        """Return the memory model."""
        bytes_at = MemoryModel.piecewise(self.points).bytes
        kept_at = MemoryModel.piecewise(self.kept).bytes if self.kept else None
        return MemoryModel(bytes_at, kept_at)

    def pace_s(self) -> tuple[float, float]:
        """Return seconds that a call takes, and that each slice adds to it.

        A straight line through the times of the fewest and of the most slices, as far as two
        runs can tell. Not the time that making the input and measuring takes: for a method of
        few steps that is most of it.
        """
        times = {rung.n_slices: rung.call_s or rung.duration_s for rung in self.rungs}
        if not times:
            return 0.0, 0.0
        few, many = min(times), max(times)
        if few == many:
            return 0.0, times[few] / few
        slice_s = max(0.0, times[many] - times[few]) / (many - few)
        return max(0.0, times[few] - few * slice_s), slice_s

    def corrected(self, n_slices: int, n_bytes: int) -> Probe:
        """Return it with all bytes raised as much as a measured peak calls for."""
        expected = self.model().bytes(n_slices)
        if n_bytes <= expected:
            return self

        def raised(points: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
            return tuple((n, -(-size * n_bytes // expected)) for n, size in points)

        note = (
            f"a run measured {format_bytes(n_bytes)} with {n_slices} slices, in place of "
            f"{format_bytes(expected)}: raised by {n_bytes / expected - 1:.1%}"
        )
        found = replace(self, points=raised(self.points), kept=raised(self.kept))
        if (lacks := n_bytes - found.model().bytes(n_slices)) > 0:  # by what lines were rounded
            found = replace(found, points=tuple((n, size + lacks) for n, size in found.points))
        answer = found.model().max_slices(self.available_bytes, self.total_slices)
        return replace(found, answer=answer, sure=False, notes=(*self.notes, note))

    def as_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Probe:
        """Return what `as_plain` wrote.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it is something else.
        """
        values = dict(plain)
        for name in ("points", "kept"):
            values[name] = tuple((int(n), int(size)) for n, size in values[name])
        rungs = (dict(rung) for rung in values["rungs"])
        values["rungs"] = tuple(Rung(**rung | {"unseen": tuple(rung["unseen"])}) for rung in rungs)
        values["notes"] = tuple(str(note) for note in values["notes"])
        if values.get("output_dims") is not None:
            rows, columns = values["output_dims"]
            values["output_dims"] = int(rows), int(columns)
        found = cls(**values)
        found.model()  # complains about points that make none
        return found

    def covers(self, available_bytes: int, total_slices: int) -> bool:
        """Tell whether it also answers for another amount of memory.

        It does up to four times the slices that were run, if they lie on a line; and up to
        those that were run in any case.
        """
        largest = max((rung.n_slices for rung in self.rungs), default=1)
        wanted = self.model().max_slices(available_bytes, total_slices)
        return wanted <= max(largest, self.answer, 4 * largest if self.sure else 0)
