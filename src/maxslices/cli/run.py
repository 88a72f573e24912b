"""``maxslices run SCAN PIPELINE OUT``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .options import ALLOW_MISSING_FRAMES, LIMITS, OUTPUT, PART, SWEEP, WORKERS
from .output import SAID, complain, say

if TYPE_CHECKING:
    from ..planner import Plan

FORMATS = ("hdf5", "tiff", "tiff-stack", "ome-zarr")
"""What is proposed for --format."""


@click.command(
    params=[*LIMITS, *PART, SWEEP, *WORKERS, ALLOW_MISSING_FRAMES, *OUTPUT],
    short_help="run a pipeline on a scan",
)
@click.argument(
    "paths",
    metavar="SCAN PIPELINE [OUT]",
    nargs=-1,
    required=True,
    type=click.Path(),
    help="the scan (HDF5/NeXus file, .npy, TIFF or folder of TIFFs), the pipeline file (YAML), and "
    "the folder for the results (default: SCAN-PIPELINE here, numbered if it is there)",
)
@click.option(
    "--output-dir",
    metavar="FOLDER",
    type=click.Path(),
    help="run several scans, each into a folder of its own in this one: give SCAN... PIPELINE, "
    "where SCAN may be a pattern in quotes",
)
@click.option(
    "--format",
    default="hdf5",
    show_default=True,
    metavar="FORMAT,...",
    shell_complete=lambda context, parameter, begin: [n for n in FORMATS if n.startswith(begin)],
    help="hdf5, tiff (a folder), tiff-stack, ome-zarr; each may have :8 or :16 (bits between two "
    "percentiles, as in tiff:8:1-99) and :compressed",
)
@click.option(
    "--pixel-size", metavar="LENGTH", help="such as 3.25um (default: what the scan's file says)"
)
@click.option("--picture", is_flag=True, help="draw three slices of the result into OUT/slices.png")
@click.option(
    "--scratch",
    metavar="FOLDER",
    type=click.Path(),
    help="folder for scratch files (default: OUT)",
)
@click.option("--overwrite", is_flag=True, help="replace the results of an earlier run in OUT")
@click.option(
    "--resume",
    is_flag=True,
    help="go on with the unfinished run in OUT, by its plan; of several scans run what is missing",
)
@click.option(
    "--plan",
    metavar="FILE",
    type=click.Path(),
    help="carry out a plan that `maxslices plan --json` wrote, for this scan and pipeline",
)
@click.option("--save-all", is_flag=True, help="save the data after every step, not the last alone")
@click.option(
    "--save-snapshots", is_flag=True, help="save the middle slice after each step, as a TIFF"
)
def run(
    paths: tuple[str, ...],
    output_dir: str | None,
    plan: str | None,
    json: bool,
    quiet: bool,
    **options: Any,
) -> str | None:
    """Run a pipeline on a scan within a memory budget.

    Results, report.html and report.json go to a folder.

    Several scans: maxslices run SCAN SCAN PIPELINE --output-dir FOLDER
    """
    from ..errors import UsageError
    from ..runner.numbered_folder import numbered_folder

    shown: list[object] = []

    def announce(plan: Plan) -> None:
        is_new = plan.sections not in shown
        shown.append(plan.sections)
        text = f"{plan}\n" if is_new else f"Planned as an earlier scan: {plan.scan}"
        SAID.info("%s", text)
        if not (json or quiet):
            say(text)

    def tell(text: str) -> None:
        if not quiet:
            complain(text)

    options |= {
        "announce": announce,
        "announce_workers": tell,
        "progress": not quiet,
        "plan": None if plan is None else _read_plan(plan),
    }
    if output_dir is not None:
        return _run_several(paths, output_dir, tell, json, quiet, options)
    from ..api.run_scan import run_announced

    scan, pipeline, out = _one_scan(paths)
    if out is None and (options["resume"] or options["overwrite"]):
        raise UsageError("--resume and --overwrite are for a folder that is there: name it as OUT")
    report = run_announced(scan, pipeline, out or numbered_folder(scan, pipeline), **options)
    SAID.info("%s", report)
    if json:
        return report.to_json()
    return None if quiet else str(report)


def _one_scan(paths: tuple[str, ...]) -> tuple[str, str, str | None]:
    """Scan, pipeline and folder of a command line for one scan."""
    from ..errors import UsageError

    several = "for several scans name a folder with --output-dir"
    if len(paths) == 1:
        raise click.UsageError("missing argument 'PIPELINE'", click.get_current_context())
    if len(paths) > 3 or any(path.endswith((".yaml", ".yml")) for path in paths[2:]):
        raise UsageError(
            f"run takes SCAN, PIPELINE and OUT; {len(paths)} paths were given, the last is "
            f"{paths[-1]}: {several}"
        )
    if any(letter in paths[0] for letter in "*?[") and not os.path.lexists(paths[0]):
        raise UsageError(f"{paths[0]} is a pattern: {several}")
    return paths[0], paths[1], paths[2] if len(paths) > 2 else None


def _run_several(
    paths: tuple[str, ...],
    output_dir: str,
    tell: Callable[[str], None],
    json: bool,
    quiet: bool,
    options: dict[str, Any],
) -> str | None:
    """Run several scans; the status is 1 if one of them fails."""
    from ..api.several_scans import run_scans_announced

    if len(paths) == 1:
        raise click.UsageError("missing argument 'PIPELINE'", click.get_current_context())
    report = run_scans_announced(paths[:-1], paths[-1], output_dir, tell, **options)
    SAID.info("%s", report)
    if json:
        say(report.to_json())
    if report.failed:
        complain(f"error: {report}")
        click.get_current_context().exit(1)
    return None if json or quiet else str(report)


MAX_PLAN_BYTES = 2**24
"""Largest file of a plan: the longest plans have some 100 kB."""


def _read_plan(path: str) -> Plan:
    """Plan that `maxslices plan --json` wrote into a file."""
    from ..errors import UsageError
    from ..planner import Plan
    from ..system.small_files import read_small_text

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
