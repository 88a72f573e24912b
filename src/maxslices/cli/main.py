"""``maxslices``: parse the command line, run a subcommand, turn errors into one line."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..errors import MaxslicesError
from . import check, demo, methods, plan, run

COMMANDS = (demo, run, plan, check, methods)
INTERRUPTED = 130
"""Exit status of a run that was stopped with Ctrl-C."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all subcommands."""
    parser = argparse.ArgumentParser(
        prog="maxslices",
        description="GPU image processing in as many slices as fit.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"maxslices {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; ``sys.argv`` by default.

    Returns
    -------
    int
        Exit status: 0, 1 for what went wrong, 2 for a command line that cannot be
        understood, 3 for what does not fit in memory, 130 after Ctrl-C.
    """
    parsed = build_parser().parse_args(arguments)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        parsed.handle(parsed)
        sys.stdout.flush()
    except MaxslicesError as error:
        print(f"maxslices: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("maxslices: stopped; no unfinished result was left behind", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"maxslices: warning: {message}", file=sys.stderr)
