"""Pages in headless Chromium print nothing on the console and fit the window."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from maxslices.report_page.drawings import draw_slice
from maxslices.report_page.page import plan_page, run_page

from .reports import a_plan, a_report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium: apt install chromium")

FRAME = """<!doctype html><title>-</title><body>
<iframe src="{page}" width="{width}" height="3000" style="border: 0"></iframe>
<script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const root = page.documentElement;
  const size = getComputedStyle(page.querySelector("p")).fontSize;
  const pictures = [...page.images].map(each => each.naturalWidth);
  document.title = JSON.stringify({{width: root.scrollWidth, size: size, pictures: pictures}});
}};
</script></body>"""
"""A page that measures another one, which runs no scripts itself."""


def opened(path, tmp_path):
    """DOM of a page, and the lines on the console."""
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
            "--allow-file-access-from-files",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1600,1200",
            "--virtual-time-budget=10000", "--enable-logging=stderr", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def pages(name=""):
    image = np.random.default_rng(0).random((40, 60))
    return {
        "plan": plan_page(a_plan({"halo": [3, 3]}, scan=f"scan.nxs {name}")),
        "run": run_page(
            a_report(plan=a_plan(scan=f"scan.nxs {name}"), side_results={f"axis{name}": 12.5}),
            pictures=[draw_slice(f"result.h5{name}", image, 512)] * 2,
        ),
    }


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["plan", "run"])
def test_a_page_opens_without_a_word_and_fits_the_window(kind, width, tmp_path):
    page, frame = tmp_path / "page.html", tmp_path / "frame.html"
    page.write_text(pages("x" * 300 + "<script>boom()</script>")[kind], encoding="utf-8")
    frame.write_text(FRAME.format(page=page.as_uri(), width=width))
    dom, console = opened(frame, tmp_path)
    assert console == []
    measured = json.loads(re.search("<title>(.*?)</title>", dom)[1])
    assert measured["width"] <= width
    assert float(measured["size"].removesuffix("px")) >= 13
    assert measured["pictures"] == ([60, 60] if kind == "run" else [])
