"""``maxslices run SCAN PIPELINE OUT`` and ``maxslices demo [OUT]``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .options import LIMITS, OUTPUT, PART, PATH, SWEEP, WORKERS, Command, check_order
from .output import complain, say, shown

if TYPE_CHECKING:
    from ..planner import Plan

FORMATS = ("hdf5", "tiff", "tiff-stack", "ome-zarr")
"""Formats that shell completion proposes."""


@click.command(
    cls=Command,
    params=[*PART, SWEEP, *LIMITS, *WORKERS, *OUTPUT],
    short_help="run a pipeline on a scan",
)
@click.argument(
    "paths",
    metavar="SCAN PIPELINE [OUT]",
    nargs=-1,
    required=True,
    type=PATH,
    help="scan (HDF5, Zarr, .npy, TIFF, folder of TIFFs), pipeline (YAML), folder for results "
    "(default: SCAN-PIPELINE)",
)
@click.option(
    "--output-dir",
    metavar="FOLDER",
    type=PATH,
    help="for SCAN... PIPELINE: parent of a folder for each scan",
)
@click.option(
    "--format",
    default="hdf5",
    metavar="FORMAT,...",
    shell_complete=lambda context, parameter, begin: [n for n in FORMATS if n.startswith(begin)],
    help="hdf5 (default), tiff, tiff-stack, ome-zarr; then :compressed, or :8, :16 or :8:1-99 for "
    "integers (bits, percentiles)",
)
@click.option(
    "--pixel-size",
    metavar="LENGTH",
    help="such as 3.25um (default: from the scan's file)",
)
@click.option("--picture", is_flag=True, help="write a PNG of three slices, OUT/slices.png")
@click.option(
    "--scratch",
    metavar="FOLDER",
    type=PATH,
    help="folder for scratch files (default: OUT)",
)
@click.option("--overwrite", is_flag=True, help="replace the results of an earlier run in OUT")
@click.option(
    "--resume",
    is_flag=True,
    help="resume the unfinished run in OUT, or unfinished scans",
)
@click.option(
    "--plan",
    metavar="FILE",
    type=PATH,
    help="use a plan that `maxslices plan --json` wrote",
)
@click.option("--save-all", is_flag=True, help="save the data after every step")
def run(
    paths: tuple[str, ...],
    output_dir: str | None,
    plan: str | None,
    json: bool,
    quiet: bool,
    **options: Any,
) -> str | None:
    """Run a pipeline within a memory budget on a scan, or several (--output-dir)."""
    if len(paths) == 1:
        raise click.UsageError("missing argument 'PIPELINE'", click.get_current_context())
    check_order(paths)

    def announce(plan: Plan) -> None:
        if not (json or quiet):
            say(f"{plan}\n")

    def tell(text: str) -> None:
        if not quiet:
            complain(text)

    options |= {
        "announce": announce,
        "announce_workers": tell,
        "progress": not quiet,
        "plan": None if plan is None else _read_plan(plan),
    }
    one = _one_scan(paths) if output_dir is None else None
    if one is not None:
        from ..api.run_request import RunRequest
        from ..api.run_scan import run_requested
        from ..runner.folder.folder_place import numbered_folder

        scan, pipeline, out = one
        if out is None and (options["resume"] or options["overwrite"]):
            raise UsageError("--resume and --overwrite need an existing folder: name it as OUT")
        out = out or str(numbered_folder(scan, pipeline))
        report = run_requested(RunRequest(scan=scan, pipeline=pipeline, out=out, **options))
        return shown(report, json, quiet)
    from ..api.several_scans import run_scans

    assert output_dir is not None
    outcomes = run_scans(paths[:-1], paths[-1], output_dir, **options)
    text = shown(outcomes, json, quiet)
    if not outcomes.failed:
        return text
    if json:
        say(str(text))
    complain(f"error: {outcomes}")
    click.get_current_context().exit(1)


def _one_scan(paths: tuple[str, ...]) -> tuple[str, str, str | None]:
    """Return scan, pipeline and folder from a command line for one scan."""
    several = "for several scans use --output-dir"
    if len(paths) > 3 or any(path.endswith((".yaml", ".yml")) for path in paths[2:]):
        raise UsageError(
            f"run takes SCAN, PIPELINE and OUT; {len(paths)} paths were given, the last is "
            f"{paths[-1]}: {several}"
        )
    if any(letter in paths[0] for letter in "*?[") and not os.path.lexists(paths[0]):
        raise UsageError(f"{paths[0]} is a pattern: {several}")
    if "" in paths[2:]:
        raise UsageError("the path of the results is empty: use '.' for the current folder")
    return paths[0], paths[1], paths[2] if len(paths) > 2 else None


MAX_PLAN_BYTES = 2**24
"""Largest file of a plan. The longest plans have about 100 kB."""


def _read_plan(path: str) -> Plan:
    """Read a plan that `maxslices plan --json` wrote."""
    from ..planner import Plan
    from ..system.files import read_small_text

    if not path:
        raise UsageError("the path of the plan is empty")
    try:
        text = read_small_text(path, MAX_PLAN_BYTES)
    except UnicodeDecodeError:
        raise UsageError(f"cannot read the plan {path}: it is not text in UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the plan {path}: {reason}") from None
    try:
        return Plan.from_json(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error}; write it with maxslices plan --json") from None


@click.command(short_help="make a scan of a phantom and reconstruct it")
@click.argument("out", type=PATH, default="demo-output", help="a folder (default: demo-output)")
def demo(out: str) -> None:
    """Make a scan of a phantom, plan it, and reconstruct it on the CPU within 220 MB.

    This is half of the memory that the whole scan would need. The folder gets the scan, the
    reconstruction with its report, and a picture that compares it with the phantom.
    """
    from ..demo import run_demo

    run_demo(out, say=say)
