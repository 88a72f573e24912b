"""`maxslices info` and `maxslices.describe`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest
from PIL import Image

from maxslices import describe
from tests.io.scans import DEGREES, KEYS, frames, write_dls


def with_facts(path):
    write_dls(path, frames(), chunks=(1, 7, 11), compression="gzip")
    with h5py.File(path, "a") as file:
        entry = file["entry1/tomo_entry"]
        entry["instrument/detector/x_pixel_size"] = 6.5e-6
        entry["instrument/detector/x_pixel_size"].attrs["units"] = "m"
        entry["instrument/detector/distance"] = np.float32(0.25)
        entry["beam/incident_energy"] = [53.0]
        entry["beam/incident_energy"].attrs["units"] = b"keV"
        entry["sample/name"] = "bone"
        entry["other/volume"] = np.zeros((2, 3, 5), "float32")
        entry["broken"] = h5py.SoftLink("/nowhere")
        entry["loop"] = h5py.SoftLink("/entry1/tomo_entry")
    return path


def test_a_scan_is_described_with_what_its_file_stores(tmp_path):
    description = describe(with_facts(tmp_path / "scan.nxs"))
    n_projections = int((KEYS == 0).sum())
    assert (description.shape, description.dtype) == ((n_projections, 7, 11), "uint16")
    assert (description.n_flats, description.n_darks) == ((KEYS == 1).sum(), (KEYS == 2).sum())
    stored = description.stored
    assert stored.chunks == (1, 7, 11)
    assert stored.compression == "deflate"
    assert stored.frame_kinds == {k: int((k == KEYS).sum()) for k in (0, 1, 2, 3)}
    values = {fact.subject: str(fact) for fact in stored.values}
    assert values == {
        "detector column size": "6.5e-06 m",
        "distance": "0.25",
        "energy": "53 keV",
        "sample": "bone",
    }
    assert [stack.where for stack in stored.stacks] == ["/entry1/tomo_entry/other/volume"]
    assert "6.5e-06 m" in str(description)
    assert "deflate" in str(description)


def test_angles_are_described_with_their_order_and_gaps():
    degrees = np.delete(np.linspace(0, 180, 181), [90, 91])
    description = describe_angles(degrees)
    assert (description.n_angles, description.first, description.last) == (
        179,
        0,
        pytest.approx(180, abs=1e-4),
    )
    assert description.step == pytest.approx(1, abs=1e-4)
    assert description.order == "increasing"
    assert description.gaps == ((90, pytest.approx(3, abs=1e-4)),)
    assert describe_angles(degrees[::-1]).order == "decreasing"
    assert describe_angles(np.array([0.0, 90, 45, 135])).order == "in no order"
    assert describe_angles(np.array([7.0])).step == 0


def describe_angles(degrees):
    from maxslices.io import ArrayScan

    data = np.zeros((len(degrees), 2, 3), "uint16")
    return describe(ArrayScan(data, angles=np.deg2rad(degrees).astype("float32"))).angles


def bliss(file):
    """An entry a kind of frames, which its title tells."""
    for number, (title, n) in enumerate([("dark images", 2), ("reference images 0", 3)], start=2):
        file[f"{number}.1/title"] = title
        file[f"{number}.1/measurement/pco"] = np.ones((n, 4, 5), "uint16")
    file["4.1/title"] = "projections 0 - 180"
    file["4.1/instrument/pco/data"] = np.ones((9, 4, 5), "uint16")
    file["4.1/measurement/pco"] = h5py.SoftLink("/4.1/instrument/pco/data")
    file["4.1/measurement/hrsrot"] = np.linspace(0, 180, 9)
    file["4.1/instrument/positioners/hrsrot"] = np.linspace(0, 180, 9)
    return (9, 4, 5), 3, 2, []


def with_image_key(file):
    file["entry/imaging/data"] = np.ones((9, 4, 5), "uint16")
    file["entry/stage/tomography_rotation"] = np.linspace(0, 180, 9)
    file["entry/diamond_scan/image_key"] = [2, 1, 1, 0, 0, 0, 0, 0, 0]
    file["entry/imaging_sum/sum"] = np.ones((9, 1, 1))
    return (6, 4, 5), 2, 1, ["/entry/imaging_sum/sum"]


def by_groups(file):
    file["entry/data/image_file"] = np.ones((9, 4, 5), "uint16")
    file["entry/data/s_rot/value"] = np.linspace(0, 180, 9)
    file["ref/data"] = np.ones((3, 4, 5), "uint16")
    file["dark/data"] = np.ones((2, 4, 6), "uint16")  # of another camera
    return (9, 4, 5), 3, None, ["/dark/data"]


@pytest.mark.parametrize("write", [bliss, with_image_key, by_groups])
def test_a_file_without_a_known_layout_is_guessed_as_trying_it_does(cli, tmp_path, write):
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        shape, n_flats, n_darks, other_stacks = write(file)
    description = describe(path)
    assert (description.shape, description.n_flats, description.n_darks) == (
        shape,
        n_flats,
        n_darks,
    )
    assert description.angles is not None
    assert description.angles.n_angles == shape[0]
    assert description.is_guess
    assert [stack.where for stack in description.stored.stacks] == other_stacks
    status, out, err = cli("info", path, "--picture", tmp_path / "odd.png")
    assert (status, err) == (0, "")
    assert "the paths below are guessed from shapes and names" in out
    assert f"data: {description.stored.layout.data}" in out


def test_a_pipe_behind_a_link_is_not_opened(tmp_path):
    path = with_facts(tmp_path / "scan.nxs")
    os.mkfifo(tmp_path / "pipe.h5")
    with h5py.File(path, "a") as file:
        file["elsewhere"] = h5py.ExternalLink("pipe.h5", "/data")
    # In a process of its own: opening a pipe that nobody writes to never ends.
    script = f"from maxslices import describe; print(describe({str(path)!r}).dtype)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "uint16"


@pytest.mark.parametrize("signature", [b"SNOD", b"HEAP"])
def test_a_damaged_file_is_an_error_of_one_line(cli, tmp_path, signature):
    path = with_facts(tmp_path / "scan.nxs")
    path.write_bytes(path.read_bytes().replace(signature, b"XXXX"))
    status, out, err = cli("info", path)
    assert (status, out) == (1, "")
    assert re.search(r"scan\.nxs: is damaged \(.*signature\)", err)
    assert len(err.splitlines()) == 1


def test_info_prints_json(cli, tmp_path):
    path = with_facts(tmp_path / "scan.nxs")
    status, out, _ = cli("info", path, "--json")
    description = json.loads(out)
    assert status == 0
    assert description["angles"]["n_angles"] == (KEYS == 0).sum()
    assert description["angles"]["first"] == pytest.approx(DEGREES[KEYS == 0][0], abs=1e-4)


def test_info_draws_a_picture(cli, tmp_path):
    path = with_facts(tmp_path / "scan.nxs")
    status, _, err = cli("info", path, "--picture", tmp_path / "scan.png")
    assert (status, err) == (0, "")
    with Image.open(tmp_path / "scan.png") as image:
        assert image.width > image.height > 100
        assert image.convert("L").getextrema() == (0, 255)  # something is drawn


@pytest.mark.parametrize(
    ("name", "message"),
    [("scan.jpg", r"give a name ending in \.png"), ("no/scan.png", "there is no folder")],
)
def test_a_picture_that_cannot_be_written_is_an_error_of_one_line(cli, tmp_path, name, message):
    path = with_facts(tmp_path / "scan.nxs")
    status, _, err = cli("info", path, "--picture", tmp_path / name)
    assert status in (1, 2)
    assert len(err.splitlines()) == 1
    assert re.search(message, err)
