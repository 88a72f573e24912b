"""``maxslices run SCAN PIPELINE OUT``."""

from __future__ import annotations

import argparse
from typing import Any

from .options import add_limits, limit_arguments
from .output import say


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="run a pipeline on a scan",
        description="Run a pipeline on a scan within a memory budget; results and report.json go "
        "to a folder.",
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
    parser.set_defaults(handle=handle)


def handle(parsed: argparse.Namespace) -> str:
    """Print the plan and run it; the report as text."""
    from ..api.api import run_announced

    report = run_announced(
        parsed.scan,
        parsed.pipeline,
        parsed.out,
        announce=lambda plan: say(f"{plan}\n"),
        **limit_arguments(parsed),
        format=parsed.format,
        overwrite=parsed.overwrite,
        progress=True,
    )
    return str(report)
