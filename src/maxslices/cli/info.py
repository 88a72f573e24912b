"""``maxslices info SCAN``."""

from __future__ import annotations

from pathlib import Path

import click

from .options import JSON, PATH, file_to_write
from .output import shown


@click.command(params=[JSON], short_help="say what is in a scan")
@click.argument("scan", type=PATH, help="a scan, or any file with 3D data in it")
@click.option(
    "--picture",
    callback=file_to_write(".png"),
    metavar="FILE",
    help="write a PNG: a projection, the mean flat, a sinogram and the histogram",
)
def info(scan: str, json: bool, picture: Path | None) -> str | None:
    """Describe a scan: layout, shape, flats, darks, angles, pixel size and energy.

    Also chunks and compression, and how fast it reads here.
    """
    from ..api import describe
    from ..api.scan_picture import draw_scan

    found = describe(scan)
    if picture is not None:
        draw_scan(scan, picture)
    return shown(found, json)
