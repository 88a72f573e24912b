"""``maxslices``: parse the command line, run a subcommand, turn errors into one line."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

from .. import __version__
from ..errors import MaxslicesError
from . import check, demo, info, measure, methods, plan, records, run
from .log_file import logged_where_asked
from .output import complain, say

COMMANDS = (demo, info, run, plan, check, measure, methods, records)
COMMAND_GROUP = "maxslices.commands"
"""Entry points of further subcommands: modules with `add_parser`, as those in `COMMANDS`."""
INTERRUPTED = 130
"""Exit status of a run that was stopped with Ctrl-C or told to end."""
NOTHING_LEFT = "stopped; nothing unfinished was left behind"
NO_MEMORY = 3
"""Exit status where memory ran out."""


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # -1GB is then read as a value, and refused as an amount of memory, not as an option.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        complain(f"error: {message} (see {self.prog} --help)")
        self.exit(2)


def build_parser() -> argparse.ArgumentParser:
    """Parser of all subcommands."""
    parser = _Parser(
        prog="maxslices",
        description="GPU image processing in as many slices as fit.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"maxslices {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    _add_installed_commands(subparsers)
    return parser


def _add_installed_commands(subparsers: Any) -> None:
    """Add the subcommands that packages bring; one that fails is left out with a warning."""
    import importlib.metadata

    for entry_point in importlib.metadata.entry_points(group=COMMAND_GROUP):
        try:
            entry_point.load().add_parser(subparsers)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a package raises when it is imported
            package = entry_point.dist.name if entry_point.dist else entry_point.value
            warnings.warn(
                f"the command {entry_point.name} of {package} is left out, because loading "
                f"{entry_point.value} failed: {type(error).__name__}: {error}",
                stacklevel=2,
            )


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
    _open_standard_files()
    with warnings.catch_warnings(), _stoppable(), _logged(), ExitStack() as log:
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            parsed = _parsed(arguments)
            log.enter_context(logged_where_asked(parsed))
            text = parsed.handle(parsed)
            if text is not None:
                say(text)
        except MaxslicesError as error:
            complain(f"error: {error}")
            return error.exit_code
        except MemoryError as error:
            said = f" ({error})" if str(error) else ""
            complain(f"error: memory ran out{said}: allow less of it with --memory")
            return NO_MEMORY
        except RuntimeError as error:
            from ..system.work_thread import NO_THREAD

            if str(error) != NO_THREAD:
                raise
            complain("error: no thread can be started: memory ran out, or too many run (ulimit -u)")
            return NO_MEMORY
        except KeyboardInterrupt as stopped:
            complain(f"stopped; {stopped}" if str(stopped) else NOTHING_LEFT)
            return INTERRUPTED
    return 0


def _open_standard_files() -> None:
    """Open what was closed of standard input, output and error, as nothing.

    Otherwise the next file that is opened has its number, and a library's message about an error
    would be written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; an unknown argument's error names the subcommand."""
    parser = build_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.prog += f" {parsed.command}"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return parsed


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a run as Ctrl-C does; another one does not stop its end.

    Python drops what is raised while it frees an object, in a weak reference's callback or in
    ``__del__``. A stop that came there comes again a moment later.
    """
    before: dict[int, Any] = {}
    unraisable = sys.unraisablehook

    def stop(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            unraisable(what)
            return
        before.setdefault(signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup and supervisors have their own
            if signal.getsignal(each) in (signal.SIG_DFL, signal.default_int_handler):
                before[each] = signal.getsignal(each)
        sys.unraisablehook = dropped
        for number in before:
            signal.signal(number, stop)
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


_AGAIN_S = 0.01
"""Seconds after which a stop that was dropped comes again: long enough for Python to have left the
callback, and no wait for a user."""


class _LogPrinter(logging.Handler):
    """Prints log records as warnings are printed; of a traceback, its last line."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().strip()
        if message.startswith("Traceback ("):
            message = message.splitlines()[-1]
        complain(f"{record.levelname.lower()}: {message}")


@contextmanager
def _logged() -> Iterator[None]:
    """Print what is logged with the level of a warning or above."""
    handler = _LogPrinter(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _show_warning(message: Warning | str, *_: Any) -> None:
    complain(f"warning: {message}")


if __name__ == "__main__":
    sys.exit(main())
