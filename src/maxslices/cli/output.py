"""Lines to standard output and standard error."""

from __future__ import annotations

import json as json_text
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, Protocol, TextIO

from ..core.units import readable
from ..errors import StoreError

_answers: list[TextIO] = []
"""Standard output while `answers_alone` reserves it for `say`."""


@contextmanager
def answers_alone() -> Iterator[None]:
    """Reserve standard output for `say`, and redirect other output to standard error.

    Output of methods and models would otherwise corrupt the JSON that a program reads.
    """
    if sys.stdout is None or sys.stderr is None:  # closed before the program began
        yield
        return
    _answers.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.pop()


def say(text: str) -> None:
    """Print to standard output. The text is dropped if its reader has closed the pipe.

    Raises
    ------
    StoreError
        If standard output is a file that cannot be written.
    """
    out = _answers[-1] if _answers else sys.stdout
    if out is None:  # closed before the program began
        return
    encoding = out.encoding or "utf-8"
    try:
        written = readable(text).encode(encoding, "backslashreplace").decode(encoding)
        print(written, file=out, flush=True)
    except BrokenPipeError:
        # Python flushes again at its exit, and would report the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    except OSError as error:
        reason = error.strerror
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        raise StoreError(f"standard output cannot be written to: {reason}") from None


class Answer(Protocol):
    """Result of a command."""

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to plain types, ready for JSON."""


def shown(answer: Answer, json: bool, quiet: bool = False) -> str | None:
    """Format a command's result as JSON or as text. Return None if it is not printed."""
    if json:
        return json_text.dumps(answer.to_dict(), indent=2)
    return None if quiet else str(answer)


def complain(text: str) -> None:
    """Print a line to standard error. Errors of writing are ignored."""
    if sys.stderr is not None:  # print would write to standard output instead
        with suppress(OSError):
            print(f"maxslices: {readable(text)}", file=sys.stderr)


@contextmanager
def log_to_screen() -> Iterator[None]:
    """Print log records from the level INFO to standard error."""
    logger, handler = logging.getLogger("maxslices"), _Screen()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Screen(logging.Handler):
    """Prints records other than warnings and progress, which are printed elsewhere."""

    def emit(self, record: logging.LogRecord) -> None:
        is_printed = record.name == "maxslices.progress" or record.levelno >= logging.WARNING
        if not is_printed:
            complain(record.getMessage())


@contextmanager
def measurements_printed() -> Iterator[None]:
    """Print a line before each measurement of a method's memory, which may take a minute."""
    from ..estimate.model_resolver import LOGGER

    if LOGGER.isEnabledFor(logging.INFO):  # log_to_screen prints each line
        yield
        return
    level, handler = LOGGER.level, _MeasurementPrinter()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.setLevel(level)
        LOGGER.removeHandler(handler)


class _MeasurementPrinter(logging.Handler):
    """Prints the start of a measurement."""

    def emit(self, record: logging.LogRecord) -> None:
        from ..estimate.model_resolver import MEASURED

        if record.msg == MEASURED:
            complain(record.getMessage())
