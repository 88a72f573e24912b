"""``maxslices``: parse the command line, run a subcommand, turn errors into one line."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from .. import __version__
from ..core.author_code import what_raised
from ..errors import MaxslicesError
from .look import check, info, plan, try_scan
from .measure import measure
from .methods import methods, new_methods
from .options import answer_shell, completion
from .output import answers_alone, complain, say
from .records import records
from .run import demo, run

COMMAND_GROUP = "maxslices.commands"
"""Group of entry points for subcommands of other packages, which are click commands."""
INTERRUPTED = 130
"""Exit status of a run that Ctrl-C or a signal stopped."""
NOTHING_LEFT = "stopped; nothing unfinished was left behind"
NO_MEMORY = 3
"""Exit status when memory runs out."""


class Commands(click.Group):
    """The subcommands in order, then those of other packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all subcommands in the order of the help."""
        return [*self.commands, *(name for name in _installed() if name not in self.commands)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Find a subcommand. One of another package is imported, or omitted with a warning."""
        command = self.commands.get(name) or (_loaded(name) if name in _installed() else None)
        for each in (command, *getattr(command, "commands", {}).values()):
            if each is not None and DEBUG not in each.params:
                each.params += [DEBUG, HELP]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand of a command line. For a wrong name, propose similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand:
            names = self.list_commands(ctx)
            raise click.NoSuchCommand(args[0], possibilities=names, ctx=ctx) from None


def _installed() -> dict[str, importlib.metadata.EntryPoint]:
    """Entry points of the subcommands of other packages, by name."""
    return {each.name: each for each in importlib.metadata.entry_points(group=COMMAND_GROUP)}


def _loaded(name: str) -> click.Command | None:
    entry_point = _installed()[name]
    try:
        command = entry_point.load()
        if isinstance(command, click.Command):
            return command
        reason = f"{entry_point.value} is not a click.Command"
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - importing a package may raise anything
        reason = f"loading {entry_point.value} failed: {what_raised(error)}"
    package = entry_point.dist.name if entry_point.dist else entry_point.value
    warnings.warn(f"the command {name} of {package} is left out: {reason}", stacklevel=2)
    return None


def _answering(names: list[str], answer: Callable[[click.Context], str], text: str) -> click.Option:
    """Make an option that prints an answer and ends the command."""

    def callback(context: click.Context, _: click.Parameter, is_given: bool) -> None:
        if is_given and not context.resilient_parsing:
            say(answer(context))
            context.exit()

    return click.Option(
        names, is_flag=True, is_eager=True, expose_value=False, callback=callback, help=text
    )


DEBUG = click.Option(
    ["--debug"], is_flag=True, expose_value=False, help="show the traceback of an error"
)
HELP = _answering(["-h", "--help"], click.Context.get_help, "show this message and exit")
VERSION = _answering(
    ["--version"], lambda _: f"maxslices {__version__}", "show the version and exit"
)

app = Commands(
    "maxslices",
    help="Run image processing pipelines on a GPU or a CPU within a memory budget.",
    commands=[
        demo,
        info,
        try_scan,
        run,
        plan,
        check,
        measure,
        methods,
        new_methods,
        records,
        completion,
    ],
    params=[VERSION, DEBUG, HELP],
    context_settings={"help_option_names": [], "max_content_width": 100},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The arguments. Default: those of the command line.

    Returns
    -------
    int
        Exit status: 0 for success, 1 for an error, 2 for an invalid command line, 3 for work
        that does not fit in memory, 130 after Ctrl-C.
    """
    _open_standard_files()
    words = sys.argv[1:] if arguments is None else [*arguments]
    with warnings.catch_warnings(), _stoppable(), _logged(), ExitStack() as log:
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        if answer_shell(app):
            return 0
        log.enter_context(answers_alone())
        try:
            return _answered([*words], log)  # click removes them from its list
        except MaxslicesError as error:
            if DEBUG.opts[0] in words:
                complain(traceback.format_exc())
            complain(f"error: {error}")
            return error.exit_code
        except MemoryError as error:
            detail = f" ({error})" if str(error) else ""
            complain(f"error: memory ran out{detail}: allow less with --memory")
            return NO_MEMORY
        except RuntimeError as error:
            from ..system.threads import NO_THREAD

            if str(error) != NO_THREAD:
                raise
            complain("error: no thread can be started: memory ran out, or too many run (ulimit -u)")
            return NO_MEMORY
        except KeyboardInterrupt as stopped:
            complain(f"stopped; {stopped}" if str(stopped) else NOTHING_LEFT)
            return INTERRUPTED


def _answered(arguments: list[str], log: ExitStack) -> int:
    """Run a command and print its answer. Logs stay open in `log`."""
    try:
        with app.make_context("maxslices", arguments, obj=log) as context:
            answer = app.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        complain(f"error: {_one_line(error)}")
        return error.exit_code
    if answer is not None:
        say(answer)
    return 0


def _open_standard_files() -> None:
    """Open standard input, output and error on the null device if they are closed.

    Otherwise the next file that is opened gets one of their numbers, and a library would write
    its error messages into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def _one_line(error: click.UsageError) -> str:
    """Format a usage error like others: in lower case, without a full stop, and with a hint."""
    is_alone = isinstance(error, click.exceptions.NoArgsIsHelpError)
    text = "missing command" if is_alone else " ".join(error.format_message().split())
    text = text.removesuffix(".")
    text = text.replace(". Did you", "; did you").replace(". (Did you", " (did you")
    where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
    return f"{text[0].lower()}{text[1:]}{where}"


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a run as Ctrl-C does. Later signals do not interrupt cleaning up.

    Python drops an exception that is raised in a weak reference's callback or in ``__del__``. A
    stop that is lost there is raised again a moment later.
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
            # nohup and supervisors set handlers of their own
            if signal.getsignal(each) in (signal.SIG_DFL, signal.default_int_handler):
                before[each] = signal.getsignal(each)
        sys.unraisablehook = dropped
        for number in before:
            signal.signal(number, stop)
        _stopped_by.update(before)
    try:
        yield
    finally:
        _stopped_by.clear()
        sys.unraisablehook = unraisable
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


_stopped_by: set[int] = set()
"""Signals that now stop a run."""


def _default_signals() -> None:
    """Let signals end a forked process, including those that arrived during the fork."""
    for number in _stopped_by:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _stopped_by)


if hasattr(os, "register_at_fork"):
    # SIGTERM ends a process that a method forks, as `multiprocessing.Pool` does, also below this
    # program. Python drops a signal that arrives during a fork if it has a handler, and the pool
    # would then wait for its process forever. So signals are blocked until the child has none.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _stopped_by),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _stopped_by),
        after_in_child=_default_signals,
    )

_AGAIN_S = 0.01
"""Seconds until a lost stop is raised again. Python has then left the callback, and a user does
not notice."""


_LOGGERS_OF_DASK = ("distributed", "tornado", "asyncio")


class _LogPrinter(logging.Handler):
    """Prints log records like warnings, each text once, and only the last line of a traceback.

    A library's error is a warning here: the command continues, or ends with an error of its own.
    Dask's records go only to the log of the run, as the run itself reports lost workers.
    """

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in _LOGGERS_OF_DASK:
            return
        message = record.getMessage().strip()
        if message.startswith("Traceback ("):
            message = message.splitlines()[-1]
        text = f"warning: {record.name}: {message}"
        if text not in self._printed:
            self._printed.add(text)
            complain(text)


@contextmanager
def _logged() -> Iterator[None]:
    """Print log records with the level WARNING or above."""
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
