"""Parts of a scan as users name them, in text and in Python, and what is read then."""

import h5py
import numpy as np
import pytest

from maxslices import ArraySpec, check, plan, run
from maxslices.errors import SourceError, UsageError
from maxslices.io import LoaderOptions, Preview, open_source, parse_loader
from maxslices.io.scans.chosen_part import preview_words, with_choice
from maxslices.io.scans.loader import AngleFile

from . import scans

DATA = np.arange(12 * 9 * 11, dtype=np.uint16).reshape(12, 9, 11)


def read(preview):
    return scans.whole(DATA, LoaderOptions(preview=preview))


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("mid", slice(3, 5)),
        ("2:6", slice(2, 6)),
        ("2 : 6", slice(2, 6)),
        (":4", slice(0, 4)),
        ("-3:", slice(6, 9)),
        ("mid-1:mid+2", slice(3, 6)),
        ("begin:end-7", slice(0, 2)),
        ("5", slice(5, 6)),
        ("-1", slice(8, 9)),
        (5, slice(5, 6)),
        (-2, slice(7, 8)),
        ((2, 6), slice(2, 6)),
        ((None, -6), slice(0, 3)),
        (slice(1, None), slice(1, 9)),
        (range(2, 4), slice(2, 4)),
        (np.int64(4), slice(4, 5)),
    ],
)
def test_rows(part, rows):
    np.testing.assert_array_equal(read(with_choice(Preview(), {"rows": part})), DATA[:, rows])


@pytest.mark.parametrize(
    ("part", "angles"),
    [
        ("::2", slice(0, None, 2)),
        ("1:11:3", slice(1, 11, 3)),
        (slice(None, None, 5), slice(0, None, 5)),
        ((2, 9, 2), slice(2, 9, 2)),
        (range(3), slice(0, 3)),
        ("mid:", slice(5, None)),
    ],
)
def test_angles(part, angles):
    np.testing.assert_array_equal(read(with_choice(Preview(), {"angles": part})), DATA[angles])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("rows", "middle"),
        ("rows", "1:2:3:4"),
        ("rows", ""),
        ("rows", "a:b"),
        ("rows", True),
        ("rows", (1,)),
        ("rows", (1, "x")),
        ("rows", "::2"),
        ("columns", slice(0, 9, 2)),
        ("angles", "mid"),
        ("angles", "::0"),
        ("angles", (0, 5, -1)),
        ("angles", np.arange(3)),
        ("angles", {0, 5}),
    ],
)
def test_invalid_parts_are_rejected(name, part):
    with pytest.raises(UsageError, match=name):
        with_choice(Preview(), {name: part})


@pytest.mark.parametrize(
    "chosen",
    [
        {"rows": "mid"},
        {"rows": "-5:"},
        {"rows": "2:6", "columns": "mid-3:mid+3", "angles": "1:end-1:2"},
        {"angles": "::3"},
    ],
)
def test_the_words_of_a_file_say_the_same(chosen):
    preview = with_choice(Preview(), chosen)
    options, faults = parse_loader({"preview": preview_words(preview)})
    assert faults == []
    assert options.preview == preview


def test_an_invalid_step_in_a_file_is_a_fault():
    _, faults = parse_loader({"preview": {"angles": {"step": 0}}})
    assert "step must be a whole number" in faults[0].text
    _, faults = parse_loader({"preview": {"detector_y": {"step": 2}}})
    assert "no parameter 'step'" in faults[0].text


def test_every_second_projection_of_frames_with_flats_has_its_angle(tmp_path):
    path = tmp_path / "scan.nxs"
    with h5py.File(path, "w") as file:
        entry = file.create_group("entry1/tomo_entry")
        entry["data/data"] = DATA
        entry["data/rotation_angle"] = np.arange(12.0)
        entry["instrument/detector/image_key"] = [1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 1]
    options = LoaderOptions(preview=with_choice(Preview(), {"angles": "3:10:2"}))
    with open_source(path, options) as source:
        np.testing.assert_allclose(np.rad2deg(source.angles), [3, 6, 8], rtol=1e-6)
        np.testing.assert_array_equal(scans.whole(source), DATA[[3, 6, 8]])
    options = LoaderOptions(preview=with_choice(Preview(), {"angles": ":2"}))
    with pytest.raises(SourceError, match="projections are frames 2 to 9"):
        open_source(path, options)


PIPELINE = ["minus_log"]


def test_run_plan_and_check_take_the_same_words():
    chosen = {"rows": "mid", "columns": slice(2, 9), "angles": "::4"}
    scan = DATA.astype(np.float32) + 1
    planned = plan(scan, PIPELINE, device="cpu", **chosen)
    assert planned.sections[0].input.shape == (3, 2, 7)
    report = run(scan, PIPELINE, device="cpu", **chosen)
    np.testing.assert_allclose(report.result, -np.log(scan[::4, 3:5, 2:9]), rtol=1e-5)
    assert "3x2x7" in check(PIPELINE, scan, **chosen)
    shape = ArraySpec((12, 9, 11), "float32")
    assert plan(shape, PIPELINE, device="cpu", **chosen).sections[0].input.shape == (3, 2, 7)


def test_a_source_that_is_open_is_read_as_it_is():
    with open_source(DATA) as source, pytest.raises(UsageError, match="rows cannot be chosen"):
        run(source, PIPELINE, device="cpu", rows="mid")


@pytest.mark.parametrize("name", ["angles.h5", "angles.txt"])
def test_angles_in_another_file(tmp_path, name):
    path, degrees = tmp_path / name, np.linspace(0, 165, 12)
    angles = {"file": str(path)}
    if name.endswith(".h5"):
        with h5py.File(path, "w") as file:
            file["a/b"] = np.deg2rad(degrees)
            file["a/b"].attrs["units"] = "rad"
        angles["data_path"] = "a/b"
    else:
        path.write_text("\n".join(map(str, degrees)))
    options, faults = parse_loader({"rotation_angles": angles})
    assert faults == []
    with open_source(DATA, options) as source:
        np.testing.assert_allclose(np.rad2deg(source.angles), degrees, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [("1 2 3", "3 rotation angles for 12"), ("one two", "text of angles"), (b"\xff", "text of")],
)
def test_angles_that_cannot_be_read(tmp_path, text, message):
    path = tmp_path / "angles.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SourceError, match=message):
        open_source(DATA, LoaderOptions(rotation_angles=AngleFile(path)))
