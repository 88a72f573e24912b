"""What is logged of a command: to standard error with -v, and to a file."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from ..core.units import readable
from ..errors import StoreError, UsageError
from .output import SAID, complain, print_to_stderr

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
