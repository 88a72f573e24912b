"""Wall time of a run, split into phases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Phase = Literal[
    "importing",
    "opening",
    "starting",
    "planning",
    "preparing",
    "waiting for disk space",
    "sections",
    "finishing",
]
"""``importing``: libraries. ``opening``: the scan. ``starting``: the device, or the workers with
what they import. ``planning``: estimates, with what they measure, and the
plan. ``preparing``: libraries, results and intermediates. ``sections``: the blocks. ``finishing``:
closing intermediates and results."""


class WallTime:
    """A clock that attributes every moment of a run to one phase.

    It starts with the phase "importing". A phase lasts until another one begins, so that all phases
    add up to the whole.

    Examples
    --------
    >>> wall_time = WallTime()
    >>> wall_time.begin("planning")
    >>> with wall_time.during("waiting for disk space"):
    ...     pass
    >>> wall_time.stop()
    >>> list(wall_time.beside_sections(sections_s=0.0))
    ['importing', 'planning', 'waiting for disk space', 'other']
    """

    def __init__(self) -> None:
        self._phase: Phase = "importing"
        self._phases_s: dict[Phase, float] = {}
        self._began_s = self._switched_s = time.perf_counter()

    @property
    def total_s(self) -> float:
        """Seconds from the start to the last change of phase, or to the stop."""
        return self._switched_s - self._began_s

    def begin(self, phase: Phase) -> None:
        """Begin a phase, or return to one."""
        now_s = time.perf_counter()
        spent_s = now_s - self._switched_s
        self._phases_s[self._phase] = self._phases_s.get(self._phase, 0.0) + spent_s
        self._phase, self._switched_s = phase, now_s

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Interrupt the current phase by another one."""
        interrupted = self._phase
        self.begin(phase)
        try:
            yield
        finally:
            self.begin(interrupted)

    def stop(self) -> None:
        """End the current phase."""
        self.begin(self._phase)

    def beside_sections(self, sections_s: float) -> dict[str, float]:
        """Seconds of each phase but the sections, and what remains as "other".

        Parameters
        ----------
        sections_s : float
            Wall time of all sections, as their reports say it.
        """
        found: dict[str, float] = {
            phase: spent_s for phase, spent_s in self._phases_s.items() if phase != "sections"
        }
        found["other"] = max(0.0, self.total_s - sections_s - sum(found.values()))
        return found
