"""``maxslices demo [OUT]``."""

from __future__ import annotations

import click

from .options import PATH
from .output import say


@click.command(short_help="make a scan, plan it, reconstruct it, and leave a picture")
@click.argument("out", type=PATH, default="demo-output", help="a folder (default: demo-output)")
def demo(out: str) -> None:
    """Make a scan of a phantom, plan it, and reconstruct it on the CPU within 40 MB.

    The result is compared with the phantom, and a picture of it all is left in the folder.
    """
    from ..demo import run_demo

    run_demo(out, say=say)
