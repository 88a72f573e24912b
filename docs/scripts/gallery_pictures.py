"""Make the pictures of README.md and docs/gallery.md with the commands that they show.

    python docs/scripts/gallery_pictures.py

It writes ``demo-scan.png``, ``demo.png``, ``plan.png``, ``report.png``, ``sweep.png`` and
``try.png`` into ``docs/_static``. Headless Chromium draws the pages of the plan and the report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from maxslices.demo.phantom import flower_head
from maxslices.demo.scan_file import make_scan

STATIC = Path(__file__).parents[1] / "_static"
PIPELINE = """
- method: dark_flat_field_correction
- method: minus_log
- method: remove_stripe_based_sorting
  parameters: {size: 7}
- method: find_center_vo
  parameters: {ind: mid}
  id: centering
  side_outputs: {cor: centre_of_rotation}
- method: fbp
  parameters:
    center: ${{centering.side_outputs.centre_of_rotation}}
"""
PLAN_PAGE, REPORT_PAGE = (1000, 950), (800, 1480)
"""Size of the upper part of a page in pixels: a plan down to its memory, a report to its files."""
WIDEST = 1000
"""Approximate width of the docs' text in pixels."""


def command(line: str) -> None:
    """Run a command of maxslices."""
    program = Path(sys.executable).with_name("maxslices")
    subprocess.run([program, *line.split()], check=True)


def show(page: str, picture: str, width: int, height: int) -> None:
    """Draw the upper part of a page."""
    chromium = shutil.which("chromium") or "google-chrome"
    subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--hide-scrollbars",
         f"--window-size={width},{height}", f"--screenshot={picture}",
         Path(page).absolute().as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip


def keep(picture: str, name: str) -> None:
    """Save a picture in the docs, no wider than their text."""
    image = Image.open(picture)
    image.thumbnail((WIDEST, 4 * WIDEST))
    if image.mode != "L":
        image = image.convert("RGB").quantize(128)
    image.save(STATIC / name, optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        make_scan(Path("flower.nxs"), flower_head(rows=24, columns=240), n_angles=271, shift=2.6)
        Path("pipeline.yaml").write_text(PIPELINE)
        command("plan flower.nxs pipeline.yaml --device cpu --memory 60MB --html plan.html")
        command("run flower.nxs pipeline.yaml centres --device cpu --sweep fbp.center=118:127:1")
        command("try flower.nxs tried --device cpu")
        command("info flower.nxs --picture scan.png")
        keep("scan.png", "demo-scan.png")
        command("demo demo")
        show("plan.html", "plan.png", *PLAN_PAGE)
        show("demo/reconstruction/report.html", "report.png", *REPORT_PAGE)
        keep("plan.png", "plan.png")
        keep("report.png", "report.png")
        keep("demo/demo.png", "demo.png")
        keep("centres/sweep.png", "sweep.png")
        keep("tried/slices.png", "try.png")
