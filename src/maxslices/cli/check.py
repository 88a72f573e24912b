"""``maxslices check PIPELINE [SCAN]``."""

from __future__ import annotations

from typing import Any

import click

from .options import PART, PATH, PIPELINE


@click.command(params=[PIPELINE, *PART], short_help="say whether a pipeline file can run")
@click.argument("scan", type=PATH, required=False, help="a scan to check it against")
def check(pipeline: str, scan: str | None, **options: Any) -> str:
    """Check a pipeline file: its form, its methods and their parameters.

    With a scan: also whether that has the flats, darks and angles that the methods need.
    """
    from ..api import check

    return check(pipeline, scan, **options)
