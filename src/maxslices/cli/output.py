"""Lines to standard output and to standard error."""

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
