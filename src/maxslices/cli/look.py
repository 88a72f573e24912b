"""Before a run: ``maxslices info``, ``try``, ``check`` and ``plan``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from .options import (
    JSON,
    LIMITS,
    OUTPUT,
    PART,
    PATH,
    PIPELINE,
    Command,
    check_order,
    file_to_write,
)
from .output import complain, say, shown


@click.command(params=[JSON], short_help="describe a scan")
@click.argument("scan", type=PATH, help="HDF5/NeXus, Zarr, .npy, TIFF or folder of TIFFs")
@click.option(
    "--picture",
    callback=file_to_write(".png"),
    metavar="FILE",
    help="write a PNG of a projection, the mean flat and a sinogram",
)
def info(scan: str, json: bool, picture: Path | None) -> str | None:
    """Describe a scan: layout, shape, flats, darks, angles, pixel size, energy and compression."""
    from ..api.describe_scan import describe
    from ..api.pictures import draw_scan

    description = describe(scan)
    if picture is not None:
        draw_scan(scan, picture)
    return shown(description, json)


@click.command(
    "try",
    cls=Command,
    params=[PART[0], *LIMITS, *OUTPUT],
    short_help="reconstruct a few slices of a scan",
)
@click.argument("scan", type=PATH, help="HDF5/NeXus, Zarr, .npy, TIFF or folder of TIFFs")
@click.argument(
    "out",
    type=PATH,
    required=False,
    help="folder for the results (default: SCAN-try, with a number if it exists)",
)
@click.option("--flats", type=PATH, metavar="PATH", help="file or folder of the flats")
@click.option("--darks", type=PATH, metavar="PATH", help="file or folder of the darks")
@click.option(
    "--angle-range", metavar="FIRST:LAST", help="degrees, if the scan stores no angles: 0:360"
)
def try_scan(
    scan: str, out: str | None, rows: str | None, json: bool, quiet: bool, **options: Any
) -> str | None:
    """Reconstruct a few slices of a scan with a standard pipeline.

    The folder gets slices.png, result.h5, and pipeline.yaml to edit and run on the whole scan.
    """
    from ..api.try_scan import PIPELINE_NAME, try_scan
    from ..runner.folder.folder_place import numbered_folder

    folder = out or str(numbered_folder(scan, "try"))
    limits = _command_words(LIMITS, options)
    report = try_scan(
        scan,
        folder,
        rows=rows or "mid",
        note=lambda text: complain(f"note: {text}"),
        progress=not quiet,
        **options,
    )
    text = shown(report, json)
    if json or quiet:
        return text if json else None
    say(f"look at {folder}/slices.png")
    say(f"change {folder}/{PIPELINE_NAME} and run it on all rows:")
    return f"  {shlex.join(['maxslices', 'run', scan, f'{folder}/{PIPELINE_NAME}', *limits])}"


def _command_words(options: Sequence[click.Option], values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that set options to values other than the defaults."""
    words = []
    for option in options:
        value = values[str(option.name)]
        if value not in (None, option.default):
            words += [option.opts[0], str(value)]
    return words


@click.command(params=[PIPELINE, *PART], short_help="check a pipeline file")
@click.argument("scan", type=PATH, required=False, help="a scan to check the pipeline with")
def check(pipeline: str, scan: str | None, **options: Any) -> str:
    """Check the form of a pipeline file, its methods and their parameters.

    With SCAN, also check that the scan has the flats, darks and angles that the methods need.
    """
    from ..api.plan_scan import check

    return check(pipeline, scan, **options)


@click.command(
    cls=Command,
    params=[*PART, *LIMITS, *OUTPUT],
    short_help="estimate the blocks and memory of a run",
)
@click.argument(
    "paths",
    metavar="[SCAN] PIPELINE",
    nargs=-1,
    required=True,
    type=PATH,
    help="scan and pipeline (YAML); --shape replaces SCAN",
)
@click.option("--shape", metavar="AxYxX", help="angles x rows x columns of a scan without a file")
@click.option("--dtype", help="data type of that scan (default: uint16)")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="number of processes on each machine",
)
@click.option(
    "--html",
    "page",
    metavar="FILE",
    callback=file_to_write(".html", ".htm"),
    help="write the plan as a page for a browser",
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
    """Estimate the blocks, memory and disk space of a run without running it.

    Without a file of the scan: maxslices plan --shape 1801x2160x2560 --dtype uint16 PIPELINE
    """
    from ..api.plan_scan import plan
    from ..core.arrays import ArraySpec, parse_shape
    from ..errors import UsageError
    from .output import measurements_printed

    if shape is None and len(paths) != 2:
        missing = "PIPELINE is missing" if len(paths) == 1 else f"{len(paths)} paths were given"
        raise UsageError(f"plan takes SCAN and PIPELINE (or --shape and PIPELINE); {missing}")
    check_order(paths)
    if shape is not None and len(paths) != 1:
        raise UsageError(f"--shape replaces SCAN: give only PIPELINE, not {' '.join(paths)}")
    if shape is None and dtype is not None:
        raise UsageError("--dtype needs --shape: a scan has its own dtype")
    scan: str | ArraySpec = paths[0]
    if shape is not None:
        scan_dtype: Any = "uint16" if dtype is None else dtype
        scan = ArraySpec(parse_shape(shape), scan_dtype)
    with nullcontext() if quiet else measurements_printed():
        new_plan = plan(scan, paths[-1], **options)
    if page is not None:
        from ..report_page.page import plan_page
        from ..system.disk_space import store_errors
        from ..system.files import replace_text

        html = plan_page(new_plan.to_dict())
        with store_errors(page, len(html)):
            replace_text(page, html)
    return shown(new_plan, json, quiet)
