"""Results as viewers themselves open them, where these are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
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


@pytest.mark.parametrize(
    ("format", "plugin", "scale"),
    [
        ("ome-zarr", "napari-ome-zarr", (2.0, 3.25, 3.25)),
        ("ome-zarr", "napari", (1, 1, 1)),
        ("tiff-stack", "napari", (1, 1, 1)),
        ("tiff", "napari", (1, 1, 1)),
    ],
)
def test_napari_shows_slices(result, volume, format, plugin, scale):
    """Its own reader has no pixel sizes; that of napari-ome-zarr has."""
    pytest.importorskip("napari")
    pytest.importorskip("napari_ome_zarr")
    from napari.components import ViewerModel
    from napari.plugins import _initialize_plugins

    _initialize_plugins()
    (layer,) = ViewerModel().open(str(result(format)), plugin=plugin)
    data = layer.data[0] if layer.multiscale else layer.data
    np.testing.assert_array_equal(np.asarray(data), volume)
    np.testing.assert_allclose(layer.scale, scale)
    if plugin != "napari":
        assert layer.axis_labels == ("z", "y", "x")
        assert {str(unit) for unit in layer.units} == {"micrometer"}
