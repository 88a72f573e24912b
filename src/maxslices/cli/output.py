"""Lines to standard output and to standard error."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

from ..errors import StoreError

SAID = logging.getLogger("maxslices.said")
"""Logger of what is printed; for files alone, since it is on the screen already."""


def say(text: str) -> None:
    """Print to standard output; drop the text if nobody reads that.

    Raises
    ------
    StoreError
        If it is a file that cannot be written.
    """
    if sys.stdout is None:  # closed before the program began
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        # The bytes of a path need not be text in this encoding.
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Python flushes again at its exit, and would report the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        reason = error.strerror
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StoreError(f"standard output cannot be written to: {reason}") from None


def complain(text: str) -> None:
    """Print a line to standard error, if that can be written, and log it."""
    SAID.info("%s", text)
    if sys.stderr is not None:  # print would write to standard output instead
        with suppress(OSError):
            print(f"maxslices: {text}", file=sys.stderr)
