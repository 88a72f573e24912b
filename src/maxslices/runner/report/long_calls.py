"""Say how long calls of a method take: while one takes long, and when all will take long."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

from ...planner.section_plan import LONG_S
from ...system.threads import HANG_S, WorkThread

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
