"""Lines to standard output and standard error, and the logs of a command."""

from __future__ import annotations

import json as json_text
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from ..core.units import readable
from ..errors import StoreError, UsageError

SAID = logging.getLogger("maxslices.said")
"""Logger of what is printed; for files alone, since it is on the screen already."""


_answers: list[TextIO] = []
"""Standard output while `answers_alone` keeps it for what is said."""


@contextmanager
def answers_alone() -> Iterator[None]:
    """Keep standard output for `say`: what methods and models print goes to standard error.

    Otherwise it would stand in the JSON that a program reads.
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
    """Print to standard output; drop the text if nobody reads that.

    Raises
    ------
    StoreError
        If it is a file that cannot be written.
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
    """What a command found."""

    def to_dict(self) -> dict[str, Any]:
        """As plain types, ready for JSON."""


def shown(found: Answer, json: bool, quiet: bool = False) -> str | None:
    """Log what a command found; its text to print: JSON, that for people, or none."""
    SAID.info("%s", found)
    if json:
        return json_text.dumps(found.to_dict(), indent=2)
    return None if quiet else str(found)


def complain(text: str) -> None:
    """Print a line to standard error, if that can be written, and log it."""
    SAID.info("%s", text)
    print_to_stderr(text)


def print_to_stderr(text: str) -> None:
    """Print a line to standard error, if that can be written."""
    if sys.stderr is not None:  # print would write to standard output instead
        with suppress(OSError):
            print(f"maxslices: {readable(text)}", file=sys.stderr)


_STAMP = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
"""Begin of each line that the logger's formatter writes."""
_PRINTED = (SAID.name, "maxslices.progress")
"""Loggers of what is on the screen already."""


def log_to_screen() -> AbstractContextManager[None]:
    """Print what is logged from INFO on to standard error."""
    return _logged(_Screen())


def log_to_file(path: str) -> AbstractContextManager[None]:
    """Write what is logged from INFO on to a file.

    Raises
    ------
    UsageError
        If something else than a log is there.
    StoreError
        If the file cannot be written.
    """
    return _logged(_opened(path))


@contextmanager
def _logged(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("maxslices")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):  # a full disk, which was said
            handler.close()
        logger.setLevel(level)


class _Screen(logging.Handler):
    """Prints what is not printed anyway, as warnings and progress are."""

    def emit(self, record: logging.LogRecord) -> None:
        # the present standard error: it is another while a progress bar is shown
        is_printed = record.name in _PRINTED or record.levelno >= logging.WARNING
        if not is_printed:
            print_to_stderr(record.getMessage())


class _EscapingFormatter(logging.Formatter):
    """Writes the time and the text, without characters that a terminal would act on."""

    def format(self, record: logging.LogRecord) -> str:
        return readable(super().format(record))


class _LogFile(logging.FileHandler):
    """Writes lines with their time; a disk that is full ends the log, not the run."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Say once that the log cannot be written."""
        logging.getLogger("maxslices").removeHandler(self)
        complain(f"warning: cannot write the log {self.baseFilename}: {sys.exception()}")


def _opened(path: str) -> logging.Handler:
    if not path:
        raise UsageError("the path of the log is empty")
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise UsageError(f"--log-file {path}: is no file")
        if file.exists():
            with file.open("rb") as there:
                first = there.read(32)
            if first and not _STAMP.match(first):
                raise UsageError(
                    f"--log-file {path}: is there already and no log: choose another name"
                )
        handler = _LogFile(file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    handler.setFormatter(_EscapingFormatter("%(asctime)s %(message)s"))
    return handler


@contextmanager
def measurements_said() -> Iterator[None]:
    """Print a line for each method whose memory is measured: that may take a minute."""
    from ..estimate.model_resolver import LOGGER

    if LOGGER.isEnabledFor(logging.INFO):  # each line is printed anyway
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
    """Prints that a measurement begins."""

    def emit(self, record: logging.LogRecord) -> None:
        from ..estimate.model_resolver import MEASURED

        if record.msg == MEASURED:
            complain(record.getMessage())
