"""``maxslices try`` on half acquisitions, on full turns around the middle, and on folders of TIFFs.

* the axis was moved near the edge of the detector, and the scan is of 360 degrees:
  https://github.com/tomopy/tomopy/issues/657
* a sample twice as wide as the beam:
  https://github.com/algotom/algotom/issues/12
* "for 360-degree scanning, which example should I refer to?":
  https://github.com/algotom/algotom/issues/23
* 360 degrees of which half of the projections had to be taken:
  https://github.com/ufo-kit/tofu/issues/58
* an axis 40 % of the detector off its middle:
  https://github.com/CERN/TIGRE/issues/589
* a stack of TIFFs with flats and darks next to it:
  https://github.com/tomopy/tomopy/issues/463
"""

import re

import h5py
import numpy as np
import pytest
import tifffile
import yaml

from maxslices.cli.main import main
from tests.methods.made_scans import write_nxtomo

from .made_scans import scan, sides

TURN = np.arange(360.0)


def nxtomo(path, degrees, **shape):
    source = scan(degrees, **shape)
    flats, darks = sides(source).values()
    return write_nxtomo(path, [(2, darks, 0), (1, flats, 0), (0, source.data, degrees)])


def methods_of(folder):
    return [step["method"] for step in yaml.safe_load((folder / "pipeline.yaml").read_text())]


def reconstructed(folder):
    with h5py.File(folder / "result.h5") as file:
        return file["entry/data/data"][()]


HALVES = {
    "right": {"columns": 160, "axis": 130.0},
    "left": {"columns": 160, "axis": 29.0},
    "40 % off": {"columns": 160, "axis": 143.5},
    "just over a quarter off": {"columns": 160, "axis": 122.0},
}
"""Axes of half acquisitions."""


@pytest.mark.parametrize("where", HALVES)
def test_a_half_acquisition_is_stitched(where, tmp_path, capsys):
    shape = HALVES[where]
    columns, axis = shape["columns"], shape["axis"]
    reach = max(axis, columns - 1 - axis)
    path = nxtomo(tmp_path / "half.nxs", TURN, **shape, reach=reach, scale=1.0)
    assert main(["try", str(path), str(tmp_path / "out"), "--device", "cpu"]) == 0
    methods = methods_of(tmp_path / "out")
    assert "sino_360_to_180" in methods
    printed = capsys.readouterr()
    assert "half acquisition" in printed.out + printed.err
    # As by a detector that is wide enough: its middle is the axis.
    wide = nxtomo(tmp_path / "wide.nxs", TURN[:180], columns=2 * columns, reach=reach, scale=1.0)
    assert main(["try", str(wide), str(tmp_path / "wide"), "--device", "cpu", "-q"]) == 0
    assert _correlation(reconstructed(tmp_path / "out"), reconstructed(tmp_path / "wide")) > 0.95


def _correlation(a, b):
    """Correlation of the middles of two volumes (z, y, x) of other widths."""
    size = min(a.shape[2], b.shape[2]) // 4
    cuts = [
        v[0][n - size : n + size, n - size : n + size] for v in (a, b) for n in [len(v[0]) // 2]
    ]
    return np.corrcoef(cuts[0].ravel(), cuts[1].ravel())[0, 1]


@pytest.mark.parametrize("axis", [79.5, 84.0, 100.0])
def test_a_full_turn_around_the_middle_is_not(axis, tmp_path, capsys):
    path = nxtomo(tmp_path / "turn.nxs", TURN, columns=160, axis=axis, reach=80)
    assert main(["try", str(path), str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert "sino_360_to_180" not in methods_of(tmp_path / "out")
    printed = capsys.readouterr()
    result = re.search(r"the axis is at column ([0-9.]+) of 160", printed.out + printed.err)
    assert float(result[1]) == pytest.approx(axis, abs=0.5)
    assert "warning" not in printed.err


def tiffs(folder, frames):
    folder.mkdir(parents=True)
    for index, frame in enumerate(frames):
        tifffile.imwrite(folder / f"frame_{index:04}.tif", frame)


@pytest.mark.parametrize(
    "names",
    [
        ("projections", "flats", "darks"),
        ("Projections", "Flat", "Dark"),
        ("tomo", "flat_before", "dark_before"),
    ],
)
def test_folders_next_to_each_other_are_found(names, tmp_path):
    source = scan(np.linspace(0, 180, 91), columns=96)
    for name, frames in zip(names, (source.data, *sides(source).values()), strict=True):
        tiffs(tmp_path / "scan" / name, frames)
    assert main(["try", str(tmp_path / "scan"), str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert "dark_flat_field_correction" in methods_of(tmp_path / "out")


def test_flats_darks_and_angles_are_options(tmp_path):
    source = scan(np.linspace(0, 360, 181), columns=96)
    tiffs(tmp_path / "a", source.data)
    tiffs(tmp_path / "b", sides(source)["flats"])
    tiffs(tmp_path / "c", sides(source)["darks"])
    options = ["--flats", str(tmp_path / "b"), "--darks", str(tmp_path / "c")]
    options += ["--angle-range", "0:360"]
    command = ["try", str(tmp_path / "a"), str(tmp_path / "out"), "--device", "cpu", *options]
    assert main(command) == 0
    assert "dark_flat_field_correction" in methods_of(tmp_path / "out")
    half = scan(np.linspace(0, 180, 91), columns=96)
    tiffs(tmp_path / "half", half.data)
    command[1:3] = [str(tmp_path / "half"), str(tmp_path / "other")]
    command[-1] = "0:180"
    assert main(command) == 0
    turned, straight = (reconstructed(tmp_path / name) for name in ("out", "other"))
    assert _correlation(turned, straight) > 0.95


def test_a_small_slice_is_shown_enlarged(tmp_path):
    from PIL import Image

    path = nxtomo(tmp_path / "small.nxs", np.arange(0, 180, 2.0), columns=64)
    assert main(["try", str(path), str(tmp_path / "out"), "--device", "cpu", "-q"]) == 0
    with Image.open(tmp_path / "out/slices.png") as picture:
        assert picture.height >= 256
