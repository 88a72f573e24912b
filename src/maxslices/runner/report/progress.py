"""What a run says while it goes on: progress over the slices, and that a call takes long.

Progress is a bar on a terminal, elsewhere a line now and then.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol, Self

from ...core.units import format_duration, readable
from ...planner.section_plan import LONG_S
from ...system.threads import HANG_S, WorkThread

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


FIRST_S = 30.0
"""Seconds after which a call is spoken of; then after twice as many each time. Until then a user
who looks at the progress has not lost much, and calls on a GPU return long before."""


class LongCalls:
    """Watches the calls of a section's methods, in a thread.

    Before a call ends, nobody knows how long it takes: a billion iterations look as a hundred do.
    What is certain is what it has taken so far, and that other blocks of its size take as long.
    """

    def __init__(self) -> None:
        self._call: tuple[float, str, int] | None = None
        self._timed: set[str] = set()
        self._ended = threading.Event()
        self._thread: WorkThread | None = None

    def __enter__(self) -> Self:
        self._ended.clear()
        self._thread = WorkThread(self._watch, "calls")
        with suppress(RuntimeError):  # there is no memory for a thread: nothing is said
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        if self._thread is not None:
            # Without memory, also for a lock to wait with, nothing more was said.
            with suppress(MemoryError, RuntimeError):
                self._thread.join(HANG_S)
            self._thread = None

    @contextmanager
    def call(self, name: str, parameters: Mapping[str, Any], n_left: int) -> Iterator[None]:
        """Watch a call.

        Parameters
        ----------
        name : str
            Name of the method.
        parameters : mapping
            What the user gave it.
        n_left : int
            Blocks that are left, this one included.
        """
        given = ", ".join(f"{key}={value}" for key, value in parameters.items())
        began, what = time.monotonic(), f"{name}({given})"
        self._call = began, what, n_left
        try:
            yield
        finally:
            self._call = None
        taken_s = time.monotonic() - began
        if what not in self._timed and taken_s * (n_left - 1) >= LONG_S:
            rest = f"{n_left - 1} blocks of its size are left"
            took = _time(taken_s) if taken_s >= 10 else f"{taken_s:.2g} s"
            warnings.warn(
                f"{what} took {took} for one block; {rest}, which take about "
                f"{_time(taken_s * (n_left - 1))}",
                stacklevel=2,
            )
        self._timed.add(what)

    def _watch(self) -> None:
        """Look at the call at work, and warn when it has taken long; then when twice as long."""
        seen: tuple[float, str, int] | None = None
        due_s = FIRST_S
        while not self._ended.wait(FIRST_S / 10):
            call = self._call
            if call is None:
                continue
            if call is not seen:
                seen, due_s = call, FIRST_S
            began, what, n_left = call
            taken_s = time.monotonic() - began
            if taken_s < due_s:
                continue
            due_s = 2 * taken_s
            rest = "it is the last block"
            if n_left > 1:
                rest = f"{n_left} blocks of its size are left, which take {_time(taken_s * n_left)}"
                rest += " at least"
            warnings.warn(
                f"{what} is at work on one block for {_time(taken_s)}; {rest}", stacklevel=2
            )


def _time(seconds: float) -> str:
    """A time in words."""
    for unit, length_s in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"
