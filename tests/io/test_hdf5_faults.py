"""Every way in which an HDF5 file can be no scan ends in one clear line."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import zlib

import h5py
import numpy as np
import pytest

from maxslices import describe
from maxslices.errors import SourceError
from maxslices.io import AngleRange, LoaderOptions, SideData, open_source
from maxslices.io.hdf5 import objects
from tests.fuzz.mutate import hangs_hdf5, heaps

from . import scans
from .scans import refused

DATA = scans.frames()
ENTRY = "entry1/tomo_entry"
KEY = f"{ENTRY}/instrument/detector/image_key"
ANGLES = f"{ENTRY}/data/rotation_angle"
FRAMES = f"{ENTRY}/data/data"


@pytest.fixture
def dls(tmp_path):
    return scans.write_dls(tmp_path / "scan.nxs", DATA)


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("scna.nxs", ["no such file", r"did you mean .*scan\.nxs"]),
        ("SCAN.nxs", ["no such file", r"did you mean .*scan\.nxs"]),
        ("q.h5", ["nothing in .* has a similar name"]),
        ("a/b/c.h5", ["is missing too"]),
        ("scan.nxs/c.h5", ["no such file"]),
        ("link.nxs", ["is a link to nowhere.nxs, which does not exist"]),
        ("scan.mrc", [".mrc is not a supported scan format"]),
        ("empty.h5", ["is empty, a file of no bytes: copy it again"]),
        ("tiff.h5", ["is not an HDF5 file"]),
        ("pipe.h5", ["neither a file nor a folder"]),
        ("loop.h5", [r"loop.h5: leads to no file \(Too many levels of symbolic"]),
        ("cut.nxs", ["truncated file", "copy it again"]),
        ("/proc/self/mem", [r"cannot be read \(Input/output error\)"]),
    ],
)
def test_paths_that_lead_to_no_scan(dls, name, patterns):
    folder = dls.parent
    for link, to in (("link.nxs", "nowhere.nxs"), ("loop.h5", "loop.h5")):
        (folder / link).symlink_to(to)
    (folder / "scan.mrc").write_bytes(b"x")
    (folder / "empty.h5").touch()
    (folder / "tiff.h5").write_bytes(b"II*\0" * 100)
    (folder / "cut.nxs").write_bytes(dls.read_bytes()[: dls.stat().st_size // 2])
    os.mkfifo(folder / "pipe.h5")
    refused(folder / name, *patterns)


def test_a_path_that_is_too_long_is_shown_in_part(tmp_path):
    with pytest.raises(SourceError, match=r"\.\.\.: leads to no file \(File name") as raised:
        open_source(tmp_path / ("x" * 5000))
    assert len(str(raised.value)) < 120


def test_a_file_that_another_program_has_locked(dls):
    with dls.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as HDF5 does while it writes
        refused(dls, "is locked, so some program is writing it")


def test_a_file_that_is_read_while_a_program_writes_it(tmp_path):
    path, copy = tmp_path / "a.nxs", tmp_path / "copy.nxs"
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset("exchange/data", DATA.shape, "u2", chunks=(1, *DATA.shape[1:]))
        file.swmr_mode = True
        data[:4] = DATA[:4]
        data.flush()
        copy.write_bytes(path.read_bytes())  # in one process HDF5 opens the same file again
    refused(copy, "already open for write", "h5clear", "wait until it is written")


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_no_permission(dls, closed, unprivileged):
    (dls if closed == "file" else dls.parent).chmod(0)
    with unprivileged():
        refused(dls, "cannot be read .Permission denied.", "check its permissions")
    dls.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("stored", "patterns"),
    [
        (
            {"raw/stack": DATA, "raw/mean": DATA[0]},
            [
                FRAMES,
                "entry0000/instrument/detector/data",
                "exchange/data",
                r"give data_path; 3D data sets in the file: /raw/stack \(15x7x11 uint16\)$",
            ],
        ),
        ({"image": DATA[0]}, ["there is no 3D data set in the file"]),
        ({"exch\udcffange/data": DATA}, []),
        ({FRAMES: DATA[0]}, ["holds 2 dims", "a scan has three dims"]),
        ({FRAMES: DATA[np.newaxis]}, ["holds 4 dims", "a scan has three dims"]),
        ({FRAMES: DATA[:0]}, ["holds no values"]),
        ({FRAMES: DATA.astype("complex64")}, ["not grey values"]),
        ({FRAMES: DATA.astype("S4")}, ["not grey values"]),
    ],
)
def test_files_without_frames(tmp_path, stored, patterns):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, value in stored.items():
            file[name.encode(errors="surrogateescape")] = value
    refused(tmp_path / "a.h5", *patterns)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (KEY, scans.KEYS[:-1], "has 14 entries for 15 frames.*image_key_path"),
        (KEY, np.ones(15, int), "marks none of the 15 frames as a projection"),
        (KEY, np.arange(15), "holds 4, 5, 6: an image key has 0 for a projection"),
        (KEY, np.array([b"0"] * 15), "not an image key"),
        (KEY, np.zeros((15, 1), int), "not an image key"),
        (ANGLES, np.arange(11.0), "11 rotation angles for 9 projections .15 frames with darks"),
        (ANGLES, np.array([b"north"] * 15), "rotation angles are .S5, not numbers"),
        (ANGLES, np.where(np.arange(15) == 3, np.nan, 1.0), "1 of 9 rotation angles are not num"),
        (ANGLES, np.ones((15, 2)), "has 2 dims, not one angle for each"),
        (ANGLES, "counts", "the unit 'counts' is neither degrees nor radians"),
    ],
)
def test_image_keys_and_angles_that_are_none(dls, name, value, message):
    with h5py.File(dls, "a") as file:
        if isinstance(value, str):
            file[name].attrs["units"] = value
        else:
            del file[name]
            file[name] = value
    refused(dls, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_path": "/raw/x"}, "/raw/x is not in the file: give another data_path; 3D data"),
        ({"data_path": f"/{ENTRY}"}, "is a group, not a data set"),
        ({"image_key_path": "/key"}, "give another image_key_path"),
        ({"rotation_angles": "/th"}, "give another rotation_angles"),
        ({"rotation_angles": AngleRange(0, 180, 2 * 10**9)}, "2000000000 rotation angles for 9 pr"),
        ({"flats": SideData(None, "/nothing")}, "/nothing is not in the file"),
        ({"flats": SideData(None, ANGLES)}, "holds 1 dims"),
        ({"flats": SideData(None, FRAMES, "/nokey")}, "/nokey is not in the file"),
        ({"flats": SideData(None, FRAMES)}, "holds the projections: give the flats another"),
    ],
)
def test_paths_that_lead_to_no_part(dls, options, message):
    refused(dls, message, options=LoaderOptions(**options))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flats.h5", r"flats\.h5: there is no such file"),
        ("flats.xyz", r"flats cannot be read from \.xyz"),
        ("flats.npy", r"flats of 7x10 pixels do not fit .* 7x11"),
        ("alone.h5", "there are no flats in it"),
    ],
)
def test_files_that_have_no_flats(tmp_path, dls, name, message):
    (tmp_path / "flats.xyz").write_text("no frames")
    np.save(tmp_path / "flats.npy", DATA[:, :, :10])
    scans.write_dls(tmp_path / "alone.h5", DATA, keys=None)
    with pytest.raises(SourceError, match=message):
        open_source(dls, LoaderOptions(flats=SideData(tmp_path / name)))


@pytest.mark.parametrize("flats", ["auto", SideData(None, FRAMES)])
def test_a_failure_leaves_no_file_open(dls, flats):
    with h5py.File(dls, "a") as file:
        file[ANGLES].attrs["units"] = "counts"
    with pytest.raises(SourceError) as raised:
        open_source(dls, LoaderOptions(flats=flats))
    with h5py.File(dls, "a"):  # would be refused while it is open for reading
        assert raised.value.__traceback__ is not None  # which keeps an unclosed file open


# Links, and many objects


@pytest.mark.parametrize(
    "link",
    [
        lambda name: h5py.SoftLink("/entry1/nowhere"),
        lambda name: h5py.SoftLink(f"/{name}"),
        lambda name: h5py.ExternalLink("nowhere.h5", "/key"),
        lambda name: h5py.ExternalLink("scan.nxs", f"/{name}"),
    ],
    ids=["dangling", "looping", "external", "external loop"],
)
@pytest.mark.parametrize("name", [KEY, ANGLES, FRAMES])
def test_a_part_behind_a_broken_link_is_not_a_part_that_is_missing(dls, name, link):
    """Without its image key, flats and darks would be taken for projections."""
    with h5py.File(dls, "a") as file:
        del file[name]
        file[name] = link(name)
    refused(dls, f"{name} is a link to", "which is broken")


def test_links_on_the_way_are_named(dls):
    """As Diamond's files are: the data of the entry are a link to those of the detector."""
    with h5py.File(dls, "a") as file:
        del file[FRAMES]
        file[f"{ENTRY}/instrument/detector/data"] = h5py.ExternalLink("raw_1.h5", "/entry/data")
        file[FRAMES] = h5py.SoftLink(f"/{ENTRY}/instrument/detector/data")
    refused(dls, "detector/data, a link to /entry/data in raw_1.h5, which is broken")
    with h5py.File(dls, "a") as file:
        del file[FRAMES], file[f"{ENTRY}/instrument"]
        file[FRAMES] = DATA
        file[f"{ENTRY}/instrument"] = h5py.SoftLink("/nowhere")
    refused(dls, f"instrument/detector/image_key cannot be reached: /{ENTRY}/instrument")


def test_a_broken_link_elsewhere_does_not_matter(dls):
    with h5py.File(dls, "a") as file:
        for name in ("entry0000", f"{ENTRY}/sample/rotation_angle", f"{ENTRY}/data/image_key"):
            file[name] = h5py.SoftLink("/nowhere")
        for number, target in enumerate((b"\xff\xfe", b"/entry1/\xff/data", b"../\xc3")):
            file.id.links.create_external(b"damaged%d" % number, b"scan.nxs", target)
    with open_source(dls) as source:
        assert source.flats is not None
        assert source.angles is not None


@pytest.mark.parametrize("question", [open_source, describe])
def test_the_rest_of_a_file_with_very_many_objects_is_left(tmp_path, monkeypatch, question):
    monkeypatch.setattr(objects, "MAX_OBJECTS", 10)
    with h5py.File(tmp_path / "many.h5", "w") as file:
        for number in range(50):
            file.create_group(f"group{number:03d}")
    with pytest.raises(SourceError, match="only the first 10 of its links were looked at"):
        question(tmp_path / "many.h5")


def test_each_object_comes_once(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["data"] = np.zeros(3)
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["a/data"] = np.zeros(3)
        file["a/again"] = file["a/data"]
        file["a/loop"] = file["a"]
        file["a/soft"] = h5py.SoftLink("/a/data")
        file["a/nowhere"] = h5py.SoftLink("/nothing")
        file["b"] = h5py.ExternalLink("other.h5", "/data")
        file["type"] = np.dtype("f4")
        objects_of = objects.FileObjects
        assert [name for name, _ in objects_of(file)] == ["/a", "/b", "/a/again"]
        assert [name for name, _ in objects_of(file, follows_links=False)] == ["/a", "/a/again"]


# Damage


@pytest.mark.parametrize("name", [KEY, ANGLES, FRAMES])
def test_a_part_that_is_damaged_is_not_a_part_that_is_missing(dls, name):
    with h5py.File(dls, "r") as file:
        header = h5py.h5o.get_info(file[name].id).addr
    with dls.open("r+b") as file:
        file.seek(header)
        file.write(b"\xff")
    refused(dls, "is damaged", "copy")


@pytest.mark.parametrize("part", [FRAMES, KEY])
def test_a_chunk_that_is_said_to_be_of_gigabytes(tmp_path, part):
    """HDF5 takes memory of that size before it reads it."""
    path = scans.write_dls(tmp_path / "scan.nxs", DATA, chunks=(2, 4, 5), compression="gzip")
    with h5py.File(path, "a") as file:
        if part == KEY:
            keys = file.pop(KEY)[:]
            file.create_dataset(KEY, data=keys, chunks=(5,), compression="gzip")
        chunk = file[part].id.get_chunk_info(1)
    raw = path.read_bytes()
    at = b"".join(n.to_bytes(8, "little") for n in (*chunk.chunk_offset, 0))
    entry = chunk.size.to_bytes(4, "little") + bytes(4) + at
    assert raw.count(entry) == 1
    path.write_bytes(raw.replace(entry, b"\xff" * 4 + entry[4:]))
    refused(path, "the index of its chunks is damaged", "of 4294967295 bytes", "copy it again")


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (zlib.compress(bytes(2**26), 9), r"has more than 80000 bytes.*is damaged"),
        (bytes(200), "the file is damaged"),
    ],
    ids=["stands for gigabytes", "noise"],
)
def test_a_damaged_chunk_is_found_when_it_is_read(tmp_path, chunk, message):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset(
            "exchange/data", (2, 200, 200), "u2", chunks=(1, 200, 200), compression="gzip"
        )
        data[0] = 1
        data.id.write_direct_chunk((1, 0, 0), chunk)
    with pytest.raises(SourceError, match=rf"a\.h5.*{message}"):
        scans.whole(tmp_path / "a.h5")


def test_hdf5_itself_hangs_on_a_global_heap_with_an_object_of_no_bytes(tmp_path):
    """Where it no longer does, SECURITY.md and `tests/fuzz` need not leave this damage out."""
    path = tmp_path / "texts.h5"
    with h5py.File(path, "w") as file:
        file["texts"] = ["a text"]
    content = bytearray(path.read_bytes())
    (heap,) = heaps(content)
    for _, at in heap:
        struct.pack_into("<Q", content, at + 8, 0)
    path.write_bytes(content)
    assert hangs_hdf5(content)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", f"import h5py; h5py.File({str(path)!r})['texts'][()]"],
            timeout=3,
            capture_output=True,
        )
