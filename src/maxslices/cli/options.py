"""Arguments and options that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import click

from .log_file import log_to_file, log_to_screen


def block_size(text: str) -> int | Literal["auto", "max"]:
    """Number of slices in a block, or ``auto`` or ``max``."""
    if text == "auto":
        return "auto"
    if text == "max":
        return "max"
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise click.BadParameter(f"{text!r} is neither a positive number, auto nor max")


def gpu_count(text: str) -> int | Literal["all"]:
    """Number of GPUs, or ``all``."""
    if text == "all":
        return "all"
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise click.BadParameter(f"{text!r} is neither a positive number nor all")


def _log(open_log: Callable[..., AbstractContextManager[None]]) -> Callable[..., None]:
    """Callback of an option that opens a log until the command line ends."""

    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        if not (value is None or value is False or context.resilient_parsing):
            context.obj.enter_context(open_log(*([value] if isinstance(value, str) else [])))

    return callback


PIPELINE = click.Argument(["pipeline"], type=click.Path(), help="pipeline file (YAML)")
DEVICE = click.Option(
    ["--device"],
    default="auto",
    metavar="auto|cpu|cuda:N",
    help="where to run (default: a GPU if there is one)",
)
JSON = click.Option(["--json"], is_flag=True, help="print JSON")
ALLOW_MISSING_FRAMES = click.Option(
    ["--allow-missing-frames"],
    is_flag=True,
    help="read frames that were never written as the fill value, with a warning",
)
SWEEP = click.Option(
    ["--sweep"],
    metavar="STEP.PARAMETER=VALUES",
    help="process the middle row with several values of a parameter: fbp.center=203:208:0.5 "
    "(the stop excluded) or fbp.center=[203,204.5]; a step is named by its id or its method",
)
PART = [
    click.Option(
        ["--rows"],
        metavar="PART",
        help="detector rows to read: mid, 40:44, mid-5:mid+5 or one index",
    ),
    click.Option(["--columns"], metavar="PART", help="detector columns to read, likewise"),
    click.Option(
        ["--angles"],
        metavar="PART",
        help="frames to read, as they are stored, with a step: ::2 for every second projection",
    ),
]
"""The part of a scan that is read: keywords of `maxslices.run`, `plan` and `check`."""
LIMITS = [
    DEVICE,
    click.Option(
        ["--memory"],
        metavar="SIZE",
        help="memory to use on the device, such as 16GB or 512MiB (default: what is free)",
    ),
    click.Option(
        ["--host-memory"],
        metavar="SIZE",
        help="host memory to use when running on a GPU (default: most of what is free)",
    ),
    click.Option(
        ["--block"],
        default="auto",
        show_default=True,
        type=block_size,
        metavar="N|auto|max",
        help="slices in a block",
    ),
    click.Option(
        ["--fit"],
        default="none",
        show_default=True,
        type=click.Choice(["none", "auto"]),
        help="auto: where a slice does not fit, work in tiles or on the host",
    ),
    click.Option(
        ["--estimator"],
        type=click.Choice(["declared", "recorded", "replayed", "probed"]),
        metavar="SOURCE",
        help="the only source of estimates to use: declared, recorded, replayed or probed "
        "(default: the first of these that there is)",
    ),
]
"""Keywords of `maxslices.plan` and `maxslices.run`, as are `ALLOW_MISSING_FRAMES` and `SWEEP`."""
WORKERS = [
    click.Option(
        ["--engine"],
        default="local",
        metavar="local|dask|dask:ADDRESS",
        help="what runs the blocks: this process, processes of this machine, or the workers of a "
        "Dask scheduler (default: local)",
    ),
    click.Option(
        ["--workers"],
        type=click.IntRange(min=1),
        metavar="N",
        help="processes on the CPU of this machine (engine dask)",
    ),
    click.Option(
        ["--gpus"],
        type=gpu_count,
        metavar="N|all",
        help="GPUs of this machine, with a process for each (engine dask)",
    ),
    click.Option(
        ["--slurm"],
        metavar="OPTIONS",
        help="have SLURM start the workers or GPUs, a job for each, with these options of sbatch: "
        "--gpus 8 --slurm '-p gpu -t 02:00:00 -A project'",
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
        callback=_log(log_to_screen),
        help="say on standard error what is being done",
    ),
    click.Option(
        ["--log-file"],
        metavar="FILE",
        type=click.Path(),
        expose_value=False,
        callback=_log(log_to_file),
        help="append all that is said, and when, to a file",
    ),
]
