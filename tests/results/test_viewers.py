"""Results as viewers themselves open them, where these are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from maxslices import run
from tests.results.conftest import pipeline

IMAGEJ = Path(os.environ.get("MAXSLICES_IMAGEJ", "/usr/share/java/ij.jar"))
"""ImageJ itself: apt install imagej default-jdk-headless."""


@pytest.mark.skipif(
    not (IMAGEJ.exists() and shutil.which("javac")), reason=f"there is no {IMAGEJ}, or no JDK"
)
def test_imagej_finds_slices_voxels_and_values(tmp_path, scan, volume):
    options = {"device": "cpu", "format": "tiff,tiff-stack,tiff-stack:8:0-100"}
    files = run(scan, pipeline(), tmp_path / "out", **options).files
    done = subprocess.run(
        ["java", "-Djava.awt.headless=true", "-cp", str(IMAGEJ),
         str(Path(__file__).with_name("Opened.java")), *map(str, files)],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    folder, stack, stack_8bit = (line.split() for line in done.stdout.splitlines())
    assert folder[:-1] == ["7", "11", "5", "3.25", "3.25", "-", "um"]
    assert stack[:-1] == stack_8bit[:-1] == ["7", "11", "5", "3.25", "3.25", "2.0", "um"]
    assert float(folder[-1]) == float(stack[-1]) == volume[2, 9, 4]
    level = (volume.max() - volume.min()) / 255
    assert abs(float(stack_8bit[-1]) - volume[2, 9, 4]) <= 0.51 * level  # by its calibration
