"""``maxslices plan SCAN PIPELINE``, or with --shape and --dtype in place of SCAN."""

from __future__ import annotations

import argparse
from typing import Any

from .options import (
    add_allow_missing_frames,
    add_limits,
    add_output_options,
    add_sweep,
    limit_arguments,
    positive,
)
from .output import SAID


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "plan",
        help="say what a pipeline would take, without running it",
        usage="maxslices plan SCAN PIPELINE [options]\n"
        "       maxslices plan --shape 1801x2160x2560 --dtype uint16 PIPELINE [options]",
        allow_abbrev=False,
    )
    parser.add_argument("paths", metavar="[SCAN] PIPELINE", nargs="+", help="as for run")
    parser.add_argument(
        "--shape", metavar="AxYxX", help="angles x rows x columns of a scan that is not here"
    )
    parser.add_argument("--dtype", help="its dtype (default: uint16)")
    add_limits(parser)
    add_sweep(parser)
    add_allow_missing_frames(parser)
    add_output_options(parser, "the plan")
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="plan for so many processes of each machine, with a GPU or on the CPU",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page of the plan, to be looked at")
    parser.set_defaults(handle=handle)


def handle(parsed: argparse.Namespace) -> str | None:
    """Make the plan, and a page of it if wanted; its text, or JSON."""
    from ..api import plan
    from ..errors import UsageError
    from ..model.arrays import ArraySpec, parse_shape
    from .plan_page import check_page, write_page

    n_paths = len(parsed.paths)
    if parsed.shape is None and n_paths != 2:
        missing = "PIPELINE is missing" if n_paths == 1 else f"{n_paths} paths were given"
        raise UsageError(f"plan takes SCAN and PIPELINE (or --shape and PIPELINE); {missing}")
    if parsed.shape is not None and n_paths != 1:
        raise UsageError(
            f"--shape stands in place of SCAN: give PIPELINE alone, not {' '.join(parsed.paths)}"
        )
    if parsed.shape is None and parsed.dtype is not None:
        raise UsageError("--dtype goes with --shape; a scan has its own dtype")
    scan: str | ArraySpec = parsed.paths[0]
    if parsed.shape is not None:
        dtype: Any = "uint16" if parsed.dtype is None else parsed.dtype
        scan = ArraySpec(parse_shape(parsed.shape), dtype)
    page = None if parsed.html is None else check_page(parsed.html)
    made = plan(
        scan,
        parsed.paths[-1],
        **limit_arguments(parsed),
        allow_missing_frames=parsed.allow_missing_frames,
        sweep=parsed.sweep,
        workers=parsed.workers,
    )
    SAID.info("%s", made)
    if page is not None:
        write_page(page, made)
    if parsed.json:
        return made.to_json()
    return None if parsed.quiet else str(made)
