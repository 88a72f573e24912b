"""Arguments and options that several subcommands share, and shell completion."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import get_completion_class, shell_complete

from ..errors import UsageError
from ..system.disk_space import check_file_place
from .output import log_to_screen

PATH = click.Path(readable=False)
"""Type of a path. It is checked when it is opened, where the error can name a remedy."""


def count_or(*words: str) -> Callable[[str], int | str]:
    """Return the type of an option that is a positive number or one of some words."""

    def parse(text: str) -> int | str:
        if text in words:
            return text
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
        *choices, last = "a positive number", *words
        raise click.BadParameter(f"{text!r} is neither {', '.join(choices)} nor {last}")

    return parse


def check_order(paths: Sequence[str]) -> None:
    """Require that the scan comes before the pipeline."""
    is_yaml = [path.endswith((".yaml", ".yml")) for path in paths]
    if is_yaml[:2] == [True, False]:
        raise UsageError(f"SCAN comes first, then PIPELINE: {paths[1]} {paths[0]}")


def file_to_write(*endings: str) -> Callable[..., Path | None]:
    """Return the callback of an option that names a file to write, which is checked first."""

    def callback(_: click.Context, option: click.Parameter, text: str | None) -> Path | None:
        if text is None:
            return None
        path = Path(text)
        if path.suffix.lower() not in endings:
            raise UsageError(f"{option.opts[0]} {text}: give a name ending in {endings[0]}")
        check_file_place(path)
        return path

    return callback


def _verbose(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Print log records until the command ends."""
    if is_given and not context.resilient_parsing:
        context.obj.enter_context(log_to_screen())


PIPELINE = click.Argument(["pipeline"], type=PATH, help="pipeline file (YAML)")
DEVICE = click.Option(
    ["--device"],
    default="auto",
    metavar="auto|cpu|cuda:N",
    help="device (default: a GPU if there is one)",
)
JSON = click.Option(["--json"], is_flag=True, help="print the answer as JSON")
SWEEP = click.Option(
    ["--sweep"],
    metavar="KEY=VALUES",
    help="process the middle row with each value of STEP.PARAMETER: fbp.center=203:208:0.5",
)
PART = [
    click.Option(
        ["--rows"], metavar="PART", help="detector rows to read: mid, 40:44, mid-5:mid+5 or 40"
    ),
    click.Option(["--columns"], metavar="PART", help="detector columns to read, likewise"),
    click.Option(
        ["--angles"],
        metavar="PART",
        help="frames to read, in stored order: ::2 for every second",
    ),
]
"""The part of a scan that is read: keywords of `maxslices.run`, `plan` and `check`."""
LIMITS = [
    DEVICE,
    click.Option(
        ["--memory"],
        metavar="SIZE",
        help="budget on the device, such as 16GB (default: most of the free memory)",
    ),
    click.Option(
        ["--host-memory"],
        metavar="SIZE",
        help="budget on a GPU's host (default: likewise)",
    ),
    click.Option(
        ["--block"],
        default="auto",
        type=count_or("auto", "max"),
        metavar="N|auto|max",
        help="slices in a block (default: auto)",
    ),
    click.Option(
        ["--estimator"],
        type=click.Choice(["declared", "recorded", "replayed", "probed"]),
        metavar="SOURCE",
        help="only declared, recorded, replayed or probed estimates",
    ),
]
"""Keywords of `maxslices.plan` and `maxslices.run`."""
WORKERS = [
    click.Option(
        ["--engine"],
        default="local",
        metavar="ENGINE",
        help="local (default), dask, or dask:ADDRESS of a scheduler",
    ),
    click.Option(
        ["--workers"],
        type=click.IntRange(min=1),
        metavar="N",
        help="number of processes on the CPU",
    ),
    click.Option(
        ["--gpus"],
        type=count_or("all"),
        metavar="N|all",
        help="number of GPUs, with one process each",
    ),
    click.Option(
        ["--slurm"],
        metavar="OPTIONS",
        help="one SLURM job each, with options such as '-p gpu'",
    ),
]
"""What runs the blocks: keywords of `maxslices.run`."""
OUTPUT = [
    JSON,
    click.Option(
        ["-q", "--quiet"], is_flag=True, help="print only warnings, errors and the output of --json"
    ),
    click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        expose_value=False,
        callback=_verbose,
        help="report each step on standard error",
    ),
]
_GROUPS: dict[str, list[click.Parameter]] = {
    "Part of the scan": [*PART, SWEEP],
    "Device and memory": [*LIMITS],
    "Workers": [*WORKERS],
    "Messages": [*OUTPUT],
}
"""Heading in a command's help -> options that several commands share."""


class Command(click.Command):
    """A command whose help lists its own options first, then the shared ones in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group."""
        shared = [option for group in _GROUPS.values() for option in group]
        own = [param for param in self.params if param not in shared]
        for heading, group in {"Options": own, **_GROUPS}.items():
            options = [each for each in self.params if each in group]
            rows = [o.get_help_record(ctx) for o in options if isinstance(o, click.Option)]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([row for row in rows if row], col_max=_COLUMN)


_COLUMN = 26
"""Width of the column of names. Few are longer, and texts get two thirds of a terminal."""


_VARIABLE = "_MAXSLICES_COMPLETE"
"""Environment variable that the shell sets to a request such as ``bash_complete``."""


@click.command(short_help="print the shell completion script")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="the shell")
@click.pass_context
def completion(context: click.Context, shell: str) -> str:
    """Print the script for a shell's completion of commands, options, files and methods.

    \b
    bash: echo 'eval "$(maxslices completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(maxslices completion zsh)"' >> ~/.zshrc
    fish: maxslices completion fish > ~/.config/fish/completions/maxslices.fish
    """  # noqa: D301 - click leaves the lines after the mark as they are
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(context.find_root().command, {}, "maxslices", _VARIABLE).source()


def answer_shell(app: click.Command) -> bool:
    """Answer a shell's request for completion. Return False if there is none."""
    request = os.environ.get(_VARIABLE)
    if request:
        warnings.simplefilter("ignore")  # warnings would appear in the line that the user types
        shell_complete(app, {}, "maxslices", _VARIABLE, request)
    return bool(request)


def method_names(_: click.Context, __: click.Parameter, begin: str) -> list[str]:
    """List the names of methods that begin with a text."""
    from ..core.method_registry import registry

    return sorted({meta.name for meta in registry if meta.name.startswith(begin)})
