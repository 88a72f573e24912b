"""Pictures of docs/gallery.md that commands make, from a made scan.

    python docs/scripts/gallery_pictures.py

writes ``sweep.png``, ``try.png`` and ``plan.png`` into ``docs/_static``. The plan
is a page as headless Chromium shows it, which has to be installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from maxslices.cli.main import main
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
PAGE = (1000, 950)
"""Pixels of a page that are shown: its upper part, down to the memory."""
WIDEST = 1000
"""Columns of the docs' text, about."""


def command(line: str) -> None:
    """Run a command of maxslices.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    if main(line.split()):
        raise RuntimeError(line)


def show(page: str, picture: str) -> None:
    """Draw the upper part of a page."""
    chromium = shutil.which("chromium") or "google-chrome"
    size = "{},{}".format(*PAGE)
    subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={size}",
         f"--screenshot={picture}", Path(page).absolute().as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip


def keep(picture: str, name: str) -> None:
    """Put a picture into the docs, no wider than their text."""
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
        show("plan.html", "plan.png")
        keep("plan.png", "plan.png")
        keep("centres/sweep.png", "sweep.png")
        keep("tried/slices.png", "try.png")
