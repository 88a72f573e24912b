"""Progress over the slices: a line that is rewritten on a terminal, elsewhere one now and then."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from ...core.units import format_duration, readable

LOGGER = logging.getLogger("maxslices.progress")
"""Where lines about progress go as well, with the level INFO."""
ENDS = logging.getLogger("maxslices.run")
"""Where the end of each section is logged."""
STEP = 0.1
"""Share of a section after which a line is due."""
LEAST_S, MOST_S = 10.0, 60.0
"""Least and most seconds between two lines: a section of a minute has six, one of a day has 1,440
and a reader sees each minute that it is alive."""

REFRESH_S = 0.1
"""Seconds between two lines on a terminal: no eye sees more."""


class Progress(Protocol):
    """Shows how many slices of a section are done."""

    def start(self, label: str, n_slices: int) -> None:
        """Begin a section."""

    def advance(self, n_slices: int) -> None:
        """Count slices as done, or as lost again if negative."""


class ProgressLines:
    """A `Progress` that writes a line when a block is done and a line is due.

    Parameters
    ----------
    write : callable
        Given each line.
    at_end : callable, optional
        Given a line at the end of each section.
    every_s : float, optional
        Seconds between two lines; by default one is due after a part of a section, see `STEP`.
    clock : callable
        Seconds, which only increase.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        at_end: Callable[[str], None] | None = None,
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._at_end, self._clock = write, at_end, clock
        self._every_s = every_s
        self._label, self._n_slices, self._done = "", 0, 0
        self._began_s = 0.0
        self._first: tuple[float, int] | None = None
        """When the first block was done, and how many slices then: the speed counts from there,
        without what is loaded for the first block, and without what an earlier run did."""
        self._line_s, self._line_done = 0.0, 0

    def start(self, label: str, n_slices: int) -> None:
        """Begin a section."""
        self._label, self._n_slices, self._done = label, n_slices, 0
        self._began_s = self._line_s = self._clock()
        self._line_done, self._first = 0, None

    def advance(self, n_slices: int) -> None:
        """Count slices as done; write a line if one is due."""
        self._done += n_slices
        now_s = self._clock()
        if self._first is None or n_slices < 0:
            self._first = now_s, self._done
        waited_s = now_s - self._line_s
        has_step = self._done - self._line_done >= STEP * self._n_slices
        is_due = waited_s >= LEAST_S and (has_step or waited_s >= MOST_S)
        if self._every_s is not None:
            is_due = waited_s >= self._every_s
        if self._at_end is not None and self._done == self._n_slices:
            took = format_duration(now_s - self._began_s)
            self._at_end(f"{self._label}: {self._n_slices} slices done in {took}")
        elif is_due:
            self._write(self._line(now_s))
            self._line_s, self._line_done = now_s, self._done

    def _line(self, now_s: float) -> str:
        share = 100 * self._done / self._n_slices
        text = f"{self._label}: {self._done} of {self._n_slices} slices ({share:.0f} %)"
        first_s, first_done = self._first or (now_s, self._done)
        if now_s > first_s and self._done > first_done:
            rate = (self._done - first_done) / (now_s - first_s)
            text += f", {rate:.3g} slices/s"
            if self._done < self._n_slices:
                text += f", {format_duration((self._n_slices - self._done) / rate)} left"
        return text


class ProgressOnAll:
    """A `Progress` that tells several others."""

    def __init__(self, others: Sequence[Progress] = ()) -> None:
        self._others = others

    def start(self, label: str, n_slices: int) -> None:
        """Begin a section."""
        for other in self._others:
            other.start(label, n_slices)

    def advance(self, n_slices: int) -> None:
        """Count slices as done."""
        for other in self._others:
            other.advance(n_slices)


@contextmanager
def progress_shown(wanted: bool) -> Iterator[Progress]:
    """Show progress with the time left on standard error, if wanted; and log it, if anyone listens.

    On a terminal it is a line that is rewritten, elsewhere a line now and then.
    """
    found: list[Progress] = []
    is_terminal = wanted and sys.stderr is not None and sys.stderr.isatty()
    if is_terminal:
        found.append(ProgressLines(_rewrite_line, at_end=_rewrite_line, every_s=REFRESH_S))
    elif wanted and sys.stderr is not None:
        found.append(ProgressLines(_to_stderr))
    if LOGGER.isEnabledFor(logging.INFO):
        found.append(ProgressLines(LOGGER.info, at_end=ENDS.info))
    try:
        yield ProgressOnAll(found)
    finally:
        if is_terminal:
            sys.stderr.write("\x1b[K")


def _to_stderr(line: str) -> None:
    print(f"maxslices: {readable(line)}", file=sys.stderr, flush=True)


def _rewrite_line(line: str) -> None:
    """Write a line over the one before; what is printed next takes its place."""
    width = shutil.get_terminal_size().columns - 1
    print(f"\x1b[K{readable(line)[:width]}", end="\r", file=sys.stderr, flush=True)
