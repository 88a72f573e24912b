"""``maxslices run SCAN PIPELINE OUT``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .options import (
    add_allow_missing_frames,
    add_limits,
    add_output_options,
    add_sweep,
    add_workers,
    limit_arguments,
)
from .output import SAID, complain, say

if TYPE_CHECKING:
    from ..planner import Plan


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="run a pipeline on a scan",
        description="Run a pipeline on a scan within a memory budget; results, report.html and "
        "report.json go to a folder.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "scan", metavar="SCAN", help="HDF5/NeXus file, .npy, TIFF or folder of TIFFs"
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="pipeline file (YAML)")
    parser.add_argument("out", metavar="OUT", help="folder for the results")
    add_limits(parser)
    parser.add_argument(
        "--format", default="hdf5", choices=["hdf5", "tiff"], help="how results are written"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the results of an earlier run in OUT"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the unfinished run in OUT, by its plan"
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="carry out a plan that `maxslices plan --json` wrote, for this scan and pipeline",
    )
    parser.add_argument(
        "--save-all", action="store_true", help="save the data after every step, not the last alone"
    )
    parser.add_argument(
        "--save-snapshots",
        action="store_true",
        help="save the middle slice after each step, as a TIFF",
    )
    add_sweep(parser)
    add_workers(parser)
    add_allow_missing_frames(parser)
    add_output_options(parser, "the report")
    parser.set_defaults(handle=handle)


def handle(parsed: argparse.Namespace) -> str | None:
    """Print the plan and run it; the report as text, or as JSON."""
    from ..api.run_scan import run_announced

    def announce(plan: Plan) -> None:
        SAID.info("%s", plan)
        if not (parsed.json or parsed.quiet):
            say(f"{plan}\n")

    def announce_workers(text: str) -> None:
        if not parsed.quiet:
            complain(text)

    report = run_announced(
        parsed.scan,
        parsed.pipeline,
        parsed.out,
        announce=announce,
        **limit_arguments(parsed),
        format=parsed.format,
        overwrite=parsed.overwrite,
        progress=not parsed.quiet,
        resume=parsed.resume,
        plan=None if parsed.plan is None else _read_plan(parsed.plan),
        allow_missing_frames=parsed.allow_missing_frames,
        sweep=parsed.sweep,
        save_all=parsed.save_all,
        save_snapshots=parsed.save_snapshots,
        engine=parsed.engine,
        workers=parsed.workers,
        gpus=parsed.gpus,
        announce_workers=announce_workers,
    )
    SAID.info("%s", report)
    if parsed.json:
        return report.to_json()
    return None if parsed.quiet else str(report)


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
