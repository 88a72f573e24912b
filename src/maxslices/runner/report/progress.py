"""Progress over the slices: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
"""Seconds between two pictures of the bar, which take a few milliseconds each: no eye sees more."""


class Progress(Protocol):
    """Shows how many slices of a section are done."""

    def start(self, label: str, n_slices: int) -> None:
        """Begin a section."""

    def advance(self, n_slices: int) -> None:
        """Count slices as done, or as lost again if negative."""


class ProgressLines:
    """A `Progress` that writes a line now and then, when a block is done.

    Parameters
    ----------
    write : callable
        Given each line.
    at_end : callable, optional
        Given a line at the end of each section.
    clock : callable
        Seconds, which only increase.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        at_end: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._at_end, self._clock = write, at_end, clock
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
        if self._at_end is not None and self._done == self._n_slices:
            took = format_duration(now_s - self._began_s)
            self._at_end(f"{self._label}: {self._n_slices} slices done in {took}")
        elif waited_s >= LEAST_S and (has_step or waited_s >= MOST_S):
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

    def __init__(self, others: list[Progress]) -> None:
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

    On a terminal it is a bar, elsewhere a line now and then.
    """
    with ExitStack() as held:
        found: list[Progress] = []
        if wanted and sys.stderr is not None:
            is_terminal = sys.stderr.isatty()
            found.append(held.enter_context(_bar()) if is_terminal else ProgressLines(_to_stderr))
        if LOGGER.isEnabledFor(logging.INFO):
            found.append(ProgressLines(LOGGER.info, at_end=ENDS.info))
        yield ProgressOnAll(found)


def _to_stderr(line: str) -> None:
    print(f"maxslices: {readable(line)}", file=sys.stderr, flush=True)


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress

    bar = RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]} slices/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,  # by a thread, which waits for ever where memory is short as it starts
    )

    class _Bar:
        task: TaskID
        shown_s = 0.0

        def start(self, label: str, n_slices: int) -> None:
            self.task = bar.add_task(readable(label), total=n_slices, rate="-")

        def advance(self, n_slices: int) -> None:
            bar.update(self.task, advance=n_slices)
            speed = bar.tasks[self.task].speed
            bar.update(self.task, rate="-" if speed is None else f"{speed:.1f}")
            if time.monotonic() - self.shown_s >= REFRESH_S:
                bar.refresh()
                self.shown_s = time.monotonic()

    with bar:
        yield _Bar()
