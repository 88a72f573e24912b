"""Arguments and options that several subcommands share, and their completion by shells."""

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
"""Type of a path: what is wrong with it is said by who opens it, with what to do about it."""


def count_or(*words: str) -> Callable[[str], int | str]:
    """Type of an option that is a positive number or one of some words."""

    def parse(text: str) -> int | str:
        if text in words:
            return text
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
        *others, last = "a positive number", *words
        raise click.BadParameter(f"{text!r} is neither {', '.join(others)} nor {last}")

    return parse


def check_order(paths: Sequence[str]) -> None:
    """Require that the scan comes before the pipeline."""
    is_yaml = [path.endswith((".yaml", ".yml")) for path in paths]
    if is_yaml[:2] == [True, False]:
        raise UsageError(f"SCAN comes first, then PIPELINE: {paths[1]} {paths[0]}")


def file_to_write(*endings: str) -> Callable[..., Path | None]:
    """Callback of an option that names a file to write: it is checked before anything is done."""

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
    """Print what is logged, until the command line ends."""
    if is_given and not context.resilient_parsing:
        context.obj.enter_context(log_to_screen())


PIPELINE = click.Argument(["pipeline"], type=PATH, help="pipeline file (YAML)")
DEVICE = click.Option(
    ["--device"], default="auto", metavar="auto|cpu|cuda:N", help="default: a GPU if there is one"
)
JSON = click.Option(["--json"], is_flag=True, help="print JSON")
SWEEP = click.Option(
    ["--sweep"],
    metavar="KEY=VALUES",
    help="of the middle row, for each value of STEP.PARAMETER: fbp.center=203:208:0.5",
)
PART = [
    click.Option(["--rows"], metavar="PART", help="detector rows: mid, 40:44, mid-5:mid+5 or 40"),
    click.Option(["--columns"], metavar="PART", help="detector columns, likewise"),
    click.Option(["--angles"], metavar="PART", help="frames as stored; ::2: every 2nd projection"),
]
"""The part of a scan that is read: keywords of `maxslices.run`, `plan` and `check`."""
LIMITS = [
    DEVICE,
    click.Option(
        ["--memory"], metavar="SIZE", help="on the device, as 16GB (default: what is free)"
    ),
    click.Option(
        ["--host-memory"], metavar="SIZE", help="on a GPU's host (default: most that is free)"
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
        help="declared, recorded, replayed or probed alone",
    ),
]
"""Keywords of `maxslices.plan` and `maxslices.run`."""
WORKERS = [
    click.Option(
        ["--engine"],
        default="local",
        metavar="ENGINE",
        help="local, dask, or dask:ADDRESS of a scheduler",
    ),
    click.Option(
        ["--workers"],
        type=click.IntRange(min=1),
        metavar="N",
        help="processes on the CPU (engine dask)",
    ),
    click.Option(
        ["--gpus"], type=count_or("all"), metavar="N|all", help="GPUs, a process each (engine dask)"
    ),
    click.Option(
        ["--slurm"], metavar="OPTIONS", help="a SLURM job for each, such as '-p gpu -t 02:00:00'"
    ),
]
"""What runs the blocks: keywords of `maxslices.run`."""
OUTPUT = [
    JSON,
    click.Option(["-q", "--quiet"], is_flag=True, help="print warnings, errors and --json only"),
    click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        expose_value=False,
        callback=_verbose,
        help="say on standard error what is being done",
    ),
]
_GROUPS: dict[str, list[click.Parameter]] = {
    "Part of the scan": [*PART, SWEEP],
    "Device and memory": [*LIMITS],
    "Workers": [*WORKERS],
    "Messages": [*OUTPUT],
}
"""Heading in a command's help -> the options that it shares with others."""


class Command(click.Command):
    """A command whose help has its own options first, then those that it shares, in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group."""
        shared = [option for group in _GROUPS.values() for option in group]
        own = [param for param in self.params if param not in shared]
        for heading, group in {"Options": own, **_GROUPS}.items():
            options = [each for each in self.params if each in group]
            found = [o.get_help_record(ctx) for o in options if isinstance(o, click.Option)]
            if found:
                with formatter.section(heading):
                    formatter.write_dl([each for each in found if each], col_max=_COLUMN)


_COLUMN = 26
"""Widest name beside its text: few options are longer, and texts have two thirds of a terminal."""


_VARIABLE = "_MAXSLICES_COMPLETE"
"""Set by the shell's function: what is asked, such as ``bash_complete``."""


@click.command(short_help="print what makes a shell complete commands")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="the shell")
@click.pass_context
def completion(context: click.Context, shell: str) -> str:
    """Print what makes a shell complete commands, options, files and names of methods.

    \b
    bash: echo 'eval "$(maxslices completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(maxslices completion zsh)"' >> ~/.zshrc
    fish: maxslices completion fish > ~/.config/fish/completions/maxslices.fish
    """  # noqa: D301 - click leaves the lines after the mark as they are
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(context.find_root().command, {}, "maxslices", _VARIABLE).source()


def answer_shell(app: click.Command) -> bool:
    """Print what completes the command line, if a shell asks; False if none does."""
    asked = os.environ.get(_VARIABLE)
    if asked:
        warnings.simplefilter("ignore")  # they would be printed into the line that is typed
        shell_complete(app, {}, "maxslices", _VARIABLE, asked)
    return bool(asked)


def method_names(_: click.Context, __: click.Parameter, begin: str) -> list[str]:
    """Names of methods that begin so."""
    from ..core.method_registry import registry

    return sorted({meta.name for meta in registry if meta.name.startswith(begin)})
