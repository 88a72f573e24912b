"""Progress over the slices: one line on a terminal, elsewhere a new line at intervals."""

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
"""Logger of lines about progress, with the level INFO."""
ENDS = logging.getLogger("maxslices.run")
"""Logger of the end of each section."""
STEP = 0.1
"""Share of a section after which a line is due."""
LEAST_S, MOST_S = 10.0, 60.0
"""Shortest and longest time between two lines. A section of a minute has six lines, and a reader of
a long one sees every minute that it is alive."""

REFRESH_S = 0.1
"""Seconds between two lines on a terminal. Faster changes are not visible."""


class Progress(Protocol):
    """Shows the number of finished slices of a section."""

    def start(self, label: str, n_slices: int) -> None:
        """Begin a section."""

    def advance(self, n_slices: int) -> None:
        """Count finished slices, or lost ones if negative."""


class ProgressLines:
    """A `Progress` that writes lines at intervals.

    Parameters
    ----------
    write : callable
        Called with each line.
    at_end : callable, optional
        Called with a line at the end of each section.
    every_s : float, optional
        Seconds between two lines. By default lines follow parts of a section; see `STEP`.
    clock : callable
        Returns seconds that only increase.
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
        """Time after the first block, and number of slices then. The speed counts from there,
        without loading before the first block, and without the slices of an earlier run."""
        self._line_s, self._line_done = 0.0, 0

    def start(self, label: str, n_slices: int) -> None:
        """Begin a section."""
        self._label, self._n_slices, self._done = label, n_slices, 0
        self._began_s = self._line_s = self._clock()
        self._line_done, self._first = 0, None

    def advance(self, n_slices: int) -> None:
        """Count finished slices, and write a line if one is due."""
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
    """A `Progress` that forwards to several others."""

    def __init__(self, targets: Sequence[Progress] = ()) -> None:
        self._targets = targets

    def start(self, label: str, n_slices: int) -> None:
        """Begin a section."""
        for target in self._targets:
            target.start(label, n_slices)

    def advance(self, n_slices: int) -> None:
        """Count finished slices."""
        for target in self._targets:
            target.advance(n_slices)


@contextmanager
def progress_shown(wanted: bool) -> Iterator[Progress]:
    """Show progress with the time left on standard error if wanted, and log it if logging is on.

    On a terminal one line is rewritten. Elsewhere a line is printed at intervals.
    """
    targets: list[Progress] = []
    is_terminal = wanted and sys.stderr is not None and sys.stderr.isatty()
    if is_terminal:
        targets.append(ProgressLines(_rewrite_line, at_end=_rewrite_line, every_s=REFRESH_S))
    elif wanted and sys.stderr is not None:
        targets.append(ProgressLines(_to_stderr))
    if LOGGER.isEnabledFor(logging.INFO):
        targets.append(ProgressLines(LOGGER.info, at_end=ENDS.info))
    try:
        yield ProgressOnAll(targets)
    finally:
        if is_terminal:
            sys.stderr.write("\x1b[K")


def _to_stderr(line: str) -> None:
    print(f"maxslices: {readable(line)}", file=sys.stderr, flush=True)


def _rewrite_line(line: str) -> None:
    """Write a line over the one before. The next output replaces it."""
    width = shutil.get_terminal_size().columns - 1
    print(f"\x1b[K{readable(line)[:width]}", end="\r", file=sys.stderr, flush=True)
