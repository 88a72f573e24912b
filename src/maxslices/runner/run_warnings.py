"""What was warned of during a run, for its page."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noted_warnings() -> Iterator[list[str]]:
    """Note the texts of all warnings; they are shown as before."""
    texts: list[str] = []
    shown = warnings.showwarning

    def note(message: Warning | str, *where: Any, **more: Any) -> None:
        texts.append(str(message))
        shown(message, *where, **more)

    warnings.showwarning = note
    try:
        yield texts
    finally:
        warnings.showwarning = shown
