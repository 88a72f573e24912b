"""The few detector rows that a sweep reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .steps import Step
from .sweep import SweptPipeline

USUAL_ROWS = 5
"""Rows that a sweep reads at least, as httomo does: methods that work on rows together are then
given some, and centre finders may average."""


@dataclass(frozen=True, slots=True)
class SweepRows:
    """Rows in the middle of a scan, the same number on either side."""

    start: int
    """First row, counted from the first that the loader's preview leaves."""
    stop: int
    """Row after the last."""
    middle: int
    """The row whose pictures are made."""
    why: tuple[str, ...]
    """Reasons for their number, in words."""
    elsewhere: tuple[int, ...] = ()
    """Steps whose side results depend on other rows, by their index."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def rows_of_sweep(cut: SweptPipeline, n_rows: int) -> SweepRows:
    """Choose the rows that the pictures of a sweep depend on.

    The middle row of the pictures is the middle row of the scan, and the rows lie evenly around
    the scan's middle, so that what "the middle" means to a method is the same row as in a run on
    all rows.

    Parameters
    ----------
    cut : SweptPipeline
        The pipeline.
    n_rows : int
        Rows of the scan.
    """
    before = cut.before.steps if cut.before is not None else ()
    reached = reach_after(cut)
    for step in before:
        reached[step.meta.name] = reached.get(step.meta.name, 0) + _reach(step)
    total = sum(reached.values())
    why = [f"{rows} on either side for {name}" for name, rows in reached.items() if rows]
    half = max(total + 1, USUAL_ROWS // 2)
    found = _around_middle(half, n_rows)
    elsewhere = []
    for index, step in enumerate(before):
        if step.meta.sample_slices is None:
            continue
        wanted = step.meta.looked_at(n_rows, **step.known_parameters())
        need = max(n_rows // 2 - wanted.start, wanted.stop - n_rows // 2)
        if need > half and need - half <= USUAL_ROWS:  # a mean of some more rows
            half, found = need, _around_middle(need, n_rows)
            why.append(f"{len(wanted)} for {step.meta.name}")
        if not _is_seen(step, wanted, found):
            elsewhere.append(index)
    if not why:
        why = ["as few as methods are usually given"]
    if found == (0, n_rows):
        why.append("all that there are")
    return SweepRows(*found, n_rows // 2, tuple(why), tuple(elsewhere))


def reach_after(cut: SweptPipeline) -> dict[str, int]:
    """Rows on either side that the swept step and those after it need, by method."""
    swept, *after = cut.swept.steps
    reached = {swept.meta.name: _farthest(cut, cut.sweep.values)}
    for step in after:
        reached[step.meta.name] = reached.get(step.meta.name, 0) + _reach(step)
    return reached


def _farthest(cut: SweptPipeline, values: Iterable[object]) -> int:
    return max(_reach(cut.with_value(value, {}).steps[0]) for value in values)


def _reach(step: Step) -> int:
    return step.meta.rows_reached(**step.known_parameters())


def _around_middle(half: int, n_rows: int) -> tuple[int, int]:
    """Rows evenly around the middle of all: an even number of them if all are even."""
    start = max(0, n_rows // 2 - half)
    return start, n_rows - start


def _is_seen(step: Step, wanted: range, rows: tuple[int, int]) -> bool:
    """True if a step that is given these rows alone looks at the same ones as given all."""
    start, stop = rows
    if not start <= wanted.start <= wanted.stop <= stop:
        return False
    seen = step.meta.looked_at(stop - start, **step.known_parameters())
    return range(seen.start + start, seen.stop + start) == wanted
