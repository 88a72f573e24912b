"""Say which method is measured while that takes long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .output import complain

SAID_AFTER_S = 1.0
"""Seconds after which it is said: a pause up to which a person does not wonder (Nielsen, Usability
Engineering, 1993, chapter 5)."""


@contextmanager
def long_measurements_said() -> Iterator[None]:
    """Print a line for each method whose memory is measured for longer than a moment."""
    from ..estimate.chooser import LOGGER

    if LOGGER.isEnabledFor(logging.INFO):  # each line is printed at once
        yield
        return
    level, handler = LOGGER.level, _Said()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.setLevel(level)
        LOGGER.removeHandler(handler)
        handler.close()


class _Said(logging.Handler):
    """Prints that a measurement began, if nothing else is logged soon after."""

    _timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take a log record: what was waited for has ended."""
        from ..estimate.chooser import MEASURED

        self._cancel()
        if record.msg == MEASURED:
            self._timer = threading.Timer(SAID_AFTER_S, complain, [record.getMessage()])
            self._timer.daemon = True
            with suppress(RuntimeError):  # there is no memory for a thread: nothing is said
                self._timer.start()

    def close(self) -> None:
        """Say nothing more."""
        self._cancel()
        super().close()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
