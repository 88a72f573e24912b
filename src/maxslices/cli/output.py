"""What the command line says, and to whom."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from ..errors import StoreError


def say(text: str) -> None:
    """Print to standard output; silently drop it if its reader has gone, or there never was one.

    Raises
    ------
    StoreError
        If it goes to a file that cannot be written.
    """
    if sys.stdout is None:  # closed before the program began
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        # A path's bytes need not be text.
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Python would complain again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        reason = error.strerror
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StoreError(f"standard output cannot be written to: {reason}") from None


def complain(text: str) -> None:
    """Print a line to standard error, if there is one that takes it."""
    if sys.stderr is not None:  # print would take standard output instead
        with suppress(OSError):
            print(f"maxslices: {text}", file=sys.stderr)
