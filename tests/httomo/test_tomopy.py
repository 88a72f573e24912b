"""tomopy's methods in httomo's database, with a fake package that has their signatures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import maxslices
from maxslices import Registry
from maxslices.errors import MaxslicesError, ParameterError, UnknownMethodError
from maxslices.httomo.register_methods import register_all
from maxslices.io import ArrayScan

SOURCES = {
    "prep/normalize.py": """
import numpy as np

def normalize(arr, flat, dark, cutoff=None, ncore=None, out=None, averaging='mean'):
    assert type(arr) is type(flat) is type(dark) is np.ndarray
    dark = dark.mean(axis=0)
    return ((arr - dark) / (flat.mean(axis=0) - dark)).astype(np.float32)
""",
    "misc/corr.py": """
import numpy as np

def gaussian_filter(arr, sigma=3, order=0, axis=0, ncore=None):
    return arr + np.float32(10 * axis)

def remove_ring(rec, thresh=300.0, out=None):
    return rec * np.arange(len(rec), dtype=np.float32)[:, None, None]

def median_filter3d(arr, size=3, ncore=None):
    return arr
""",
    "misc/morph.py": """
def downsample(arr, level=1, axis=2):
    return arr[:, :, ::2**level].copy()
""",
    "recon/algorithm.py": """
import numpy as np

def recon(tomo, theta, center=None, sinogram_order=False, algorithm=None, **kwargs):
    n_angles, n_slices, width = tomo.shape
    assert len(theta) == n_angles
    out = np.empty((n_slices, width, width), np.float32)
    out[...] = np.arange(n_slices)[:, None, None] + theta.sum() + tomo.mean(axis=0)[:, None]
    return out
""",
    "recon/rotation.py": """
def find_center(tomo, theta, ind=None, init=None, tol=0.5):
    assert tomo.shape[1] == 1 and ind == 0
    return float(theta.sum() + tomo.mean())
""",
    "prep/alignment.py": "def scale(prj):\n    return prj, 1.0\n",
}


@pytest.fixture
def methods(theirs, tmp_path, monkeypatch):
    """Return the real database's methods of the fake package."""
    for name, text in SOURCES.items():
        file = tmp_path / "tomopy" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in (tmp_path / "tomopy", file.parent):
            (folder / "__init__.py").touch()
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    register_all(registry)
    yield registry
    for name in [n for n in sys.modules if n.split(".")[0] == "tomopy"]:
        del sys.modules[name]


def test_flats_and_darks_are_passed_by_tomopys_names(methods):
    meta = methods.get("normalize", "tomopy.prep.normalize")
    assert set(meta.supplied) == {"flats", "darks"}
    assert {"flat", "dark", "out"}.isdisjoint(meta.parameters)
    data = np.full((2, 3, 4), 6, np.uint16)
    flats, darks = np.full((5, 3, 4), 12, np.uint16), np.full((5, 3, 4), 2, np.uint16)
    np.testing.assert_allclose(meta.function(data, flats=flats, darks=darks), 0.4)


def test_axes_of_slices_are_swapped(methods):
    meta = methods.get("recon", "tomopy.recon.algorithm")
    assert meta.saved_by_default
    assert meta.output_other_dims(1, (30, 20), algorithm="gridrec") == (20, 20)
    assert meta.output_other_dims(1, (30, 20), num_gridx=8, num_gridy=9) == (8, 9)
    data = np.zeros((3, 5, 4), np.float32)
    result = meta.function(data, angles=np.ones(3), algorithm="gridrec")
    assert result.shape == (4, 5, 4)
    np.testing.assert_array_equal(result[0, :, 0], 3 + np.arange(5))


def test_a_centre_is_found_from_the_angles_of_all_blocks(methods):
    meta = methods.get("find_center", "tomopy.recon.rotation")
    assert "theta" not in meta.parameters
    data = np.ones((4, 3, 5), np.float32)
    parts = [
        meta.function(data[at], angles=np.arange(4.0)[at]) for at in (slice(0, 2), slice(2, 4))
    ]
    assert meta.combine(parts) == 7.0


def test_a_filter_of_frames_gets_the_slice_axis(methods):
    meta = methods.get("gaussian_filter", "tomopy.misc.corr")
    data = np.zeros((2, 2, 2), np.float32)
    assert meta.function(data, axis="auto", slice_dim=1).max() == 10
    assert meta.function(data, slice_dim=0).max() == 0
    with pytest.raises(ParameterError, match="Use axis: auto, not 2"):
        meta.function(data, axis=2, slice_dim=1)


def test_an_axis_that_gets_shorter_is_not_the_slice_axis(methods):
    meta = methods.get("downsample", "tomopy.misc.morph")
    assert meta.output_other_dims(0, (30, 20), slice_dim=0) == (30, 10)
    assert meta.output_other_dims(0, (32, 20), level=2, axis=1, slice_dim=0) == (8, 20)
    with pytest.raises(MaxslicesError, match="axis must be 0 or 2 here"):
        meta.output_other_dims(1, (30, 20), axis=1, slice_dim=1)


def test_ring_removal_gets_slices_first(methods):
    meta = methods.get("remove_ring", "tomopy.misc.corr")
    data = np.ones((2, 3, 2), np.float32)
    result = meta.function(data, slice_dim=1)
    np.testing.assert_array_equal(result[0, :, 0], [0, 1, 2])


def test_a_median_cube_has_a_halo(methods):
    meta = methods.get("median_filter3d", "tomopy.misc.corr")
    assert meta.halo_slices(size=5) == (2, 2)


def test_unsupported_methods_have_a_reason(methods):
    with pytest.raises(UnknownMethodError, match="returns more than the data"):
        methods.get("scale", "tomopy.prep.alignment")


def test_a_pipeline_of_tomopy_runs(methods):
    rng = np.random.default_rng(0)
    scan = ArrayScan(
        rng.random((6, 5, 8), np.float32) + 2,
        flats=np.full((2, 5, 8), 4, np.float32),
        darks=np.ones((2, 5, 8), np.float32),
        angles=np.linspace(0, 3, 6),
    )
    steps = [
        {"method": "normalize", "module_path": "tomopy.prep.normalize"},
        {
            "method": "recon",
            "module_path": "tomopy.recon.algorithm",
            "parameters": {"algorithm": "gridrec", "center": 3.5},
        },
    ]
    pipeline = maxslices.Pipeline.from_steps(steps, methods=methods)
    report = maxslices.run(scan, pipeline, device="cpu")
    assert report.result.shape == (8, 5, 8)


def test_all_methods_that_are_refused_are_in_the_database(theirs: Path):
    from maxslices.httomo.tomopy_methods import REFUSED

    path = theirs / "httomo_backends/methods_database/packages/backends/tomopy/tomopy.yaml"
    database = yaml.safe_load(path.read_text())
    for name in REFUSED:
        package, module, method = name.split(".")
        assert method in database[package][module], name
