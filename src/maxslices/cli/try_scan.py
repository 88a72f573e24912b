"""``maxslices try SCAN [OUT]``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from .options import LIMITS, OUTPUT, PART, PATH, Command
from .output import complain, say, shown


@click.command(
    "try",
    cls=Command,
    params=[PART[0], *LIMITS, *OUTPUT],
    short_help="reconstruct a few slices of a scan, and draw them",
)
@click.argument("scan", type=PATH, help="HDF5/NeXus file, .npy, TIFF or folder of TIFFs")
@click.argument(
    "out",
    type=PATH,
    required=False,
    help="folder for the results (default: SCAN-try here, numbered if it is there)",
)
def try_scan(
    scan: str, out: str | None, rows: str | None, json: bool, quiet: bool, **options: Any
) -> str | None:
    """Reconstruct a few slices of a scan by a usual pipeline, and draw them.

    The folder gets slices.png, result.h5, and pipeline.yaml to change and run on all of the scan.
    """
    from ..api.try_scan import PIPELINE_NAME, try_scan
    from ..runner.folder.numbered_folder import numbered_folder

    folder = out or str(numbered_folder(scan, "try"))
    limits = _given(LIMITS, options)
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


def _given(options: Sequence[click.Option], values: Mapping[str, Any]) -> list[str]:
    """Words of a command line that give options the values that they have here."""
    words = []
    for option in options:
        value = values[str(option.name)]
        if value not in (None, option.default):
            words += [option.opts[0], str(value)]
    return words
