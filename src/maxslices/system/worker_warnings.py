"""Warnings in the process of a worker."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..core.units import readable

_thread = threading.local()
_python_shows = warnings.showwarning


def warn_in_one_line() -> None:
    """Have this process show warnings as the command line does, without a place in the source.

    Where somebody shows them in another way already, as a run does in its own process, that stays.
    """
    if warnings.showwarning is _python_shows:
        warnings.showwarning = _show  # type: ignore[assignment]


@contextmanager
def told_elsewhere() -> Iterator[None]:
    """Drop warnings of this thread: the process that began the run has shown them.

    Other threads are not concerned, as they would be by `warnings.catch_warnings`.
    """
    _thread.is_silent = True
    try:
        yield
    finally:
        _thread.is_silent = False


def _show(message: Warning | str, *_: Any) -> None:
    if not getattr(_thread, "is_silent", False):
        with suppress(OSError):
            print(f"maxslices: warning: {readable(str(message))}", file=sys.stderr)
