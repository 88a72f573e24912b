"""``maxslices plan SCAN PIPELINE``, or with --shape and --dtype in place of SCAN."""

from __future__ import annotations

import json as json_text
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from .options import LIMITS, OUTPUT, PART, PATH, SWEEP, Command, check_order, file_to_write
from .output import SAID


@click.command(
    cls=Command,
    params=[*PART, SWEEP, *LIMITS, *OUTPUT],
    short_help="say what a pipeline would take, without running it",
)
@click.argument(
    "paths",
    metavar="[SCAN] PIPELINE",
    nargs=-1,
    required=True,
    type=PATH,
    help="as for run; without SCAN give --shape",
)
@click.option("--shape", metavar="AxYxX", help="angles x rows x columns of a scan that is not here")
@click.option("--dtype", help="its dtype (default: uint16)")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="plan for so many processes of each machine, with a GPU or on the CPU",
)
@click.option(
    "--html",
    "page",
    metavar="FILE",
    callback=file_to_write(".html", ".htm"),
    help="write a page of the plan, to be looked at",
)
def plan(
    paths: tuple[str, ...],
    shape: str | None,
    dtype: str | None,
    json: bool,
    quiet: bool,
    page: Path | None,
    **options: Any,
) -> str | None:
    """Say what a pipeline would take, without running it.

    The scan need not be here: maxslices plan --shape 1801x2160x2560 --dtype uint16 PIPELINE
    """
    from ..api import plan
    from ..api.run_speeds import likely_time
    from ..core.arrays import ArraySpec, parse_shape
    from ..errors import UsageError
    from .long_measurements import long_measurements_said

    if shape is None and len(paths) != 2:
        missing = "PIPELINE is missing" if len(paths) == 1 else f"{len(paths)} paths were given"
        raise UsageError(f"plan takes SCAN and PIPELINE (or --shape and PIPELINE); {missing}")
    check_order(paths)
    if shape is not None and len(paths) != 1:
        raise UsageError(
            f"--shape stands in place of SCAN: give PIPELINE alone, not {' '.join(paths)}"
        )
    if shape is None and dtype is not None:
        raise UsageError("--dtype goes with --shape; a scan has its own dtype")
    scan: str | ArraySpec = paths[0]
    if shape is not None:
        named: Any = "uint16" if dtype is None else dtype
        scan = ArraySpec(parse_shape(shape), named)
    with nullcontext() if quiet else long_measurements_said():
        made = plan(scan, paths[-1], **options)
    likely = likely_time(made)
    text = str(made) if likely is None else f"{made}\n{likely}"
    SAID.info("%s", text)
    entries = {**made.to_dict(), "likely_time": None if likely is None else likely.to_dict()}
    if page is not None:
        from ..report_page.page import plan_page
        from ..system.disk_space import store_errors
        from ..system.fresh_files import replace_text

        html = plan_page(entries)
        with store_errors(page, len(html)):
            replace_text(page, html)
    if json:
        return json_text.dumps(entries, indent=2)
    return None if quiet else text
