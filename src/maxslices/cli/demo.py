"""``maxslices demo [OUT]``."""

from __future__ import annotations

import argparse
from typing import Any

from .output import say


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "demo",
        help="make a scan, plan it, reconstruct it, and leave a picture",
        description="Make a scan of a phantom, plan it, reconstruct it on the CPU within 32 MB, "
        "compare it with the phantom, and leave a picture of it all.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "out", metavar="OUT", nargs="?", default="demo-output", help="folder (default: demo-output)"
    )
    parser.set_defaults(handle=handle)


def handle(parsed: argparse.Namespace) -> None:
    """Run the demo, which prints each step."""
    from ..demo import run_demo

    run_demo(parsed.out, say=say)
