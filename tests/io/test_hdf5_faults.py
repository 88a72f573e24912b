"""Every way in which an HDF5 file can be no scan ends in one clear line."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from maxslices.errors import SourceError
from maxslices.io import AngleRange, LoaderOptions, SideData, open_source
from tests.fuzz.mutate import hangs_hdf5, heaps

from . import scans

DATA = scans.frames()
KEY = "entry1/tomo_entry/instrument/detector/image_key"
ANGLES = "entry1/tomo_entry/data/rotation_angle"
FRAMES = "entry1/tomo_entry/data/data"


@pytest.fixture
def dls(tmp_path):
    return scans.write_dls(tmp_path / "scan.nxs", DATA)


def refused(path, *patterns: str, options: LoaderOptions | None = None) -> None:
    """Assert that opening fails with one line that names the file and holds all `patterns`."""
    with pytest.raises(SourceError) as raised:
        open_source(path, options)
    message = str(raised.value)
    assert "\n" not in message
    for pattern in (re.escape(str(path)), *patterns):
        assert re.search(pattern, message), message


def replace(path, name: str, value: object) -> None:
    with h5py.File(path, "a") as file:
        del file[name]
        if value is not None:
            file[name] = value


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("scna.nxs", ["no such file", r"did you mean .*scan\.nxs"]),
        ("SCAN.nxs", ["no such file", r"did you mean .*scan\.nxs"]),
        ("q.h5", ["nothing in .* has a similar name"]),
        ("a/b/c.h5", ["is missing too"]),
        ("scan.nxs/c.h5", ["no such file"]),
        ("link.nxs", ["is a link to nowhere.nxs, which is not there"]),
        ("scan.mrc", [".mrc is not a kind of scan"]),
        ("empty.h5", ["is empty, a file of no bytes"]),
        ("tiff.h5", ["is not an HDF5 file"]),
        ("pipe.h5", ["neither a file nor a folder"]),
        ("loop.h5", [r"loop.h5: leads to no file \(Too many levels of symbolic"]),
    ],
)
def test_paths_that_lead_to_no_scan(dls, name, patterns):
    folder = dls.parent
    for link, to in (("link.nxs", "nowhere.nxs"), ("loop.h5", "loop.h5")):
        (folder / link).symlink_to(to)
    (folder / "scan.mrc").write_bytes(b"x")
    (folder / "empty.h5").touch()
    (folder / "tiff.h5").write_bytes(b"II*\0" * 100)
    os.mkfifo(folder / "pipe.h5")
    refused(folder / name, *patterns)


def test_a_path_that_is_too_long_is_shown_in_part(tmp_path):
    with pytest.raises(
        SourceError, match=r"\.\.\.: leads to no file \(File name too long\)$"
    ) as raised:
        open_source(tmp_path / ("x" * 5000))
    assert len(str(raised.value)) < 120


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="Linux has it")
def test_a_file_of_the_system_that_cannot_be_read():
    refused(Path("/proc/self/mem"), r"cannot be read \(Input/output error\)")


def test_a_file_that_another_program_has_locked(dls):
    with dls.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as HDF5 does while it writes
        refused(dls, "is locked, so some program is writing it")


def test_truncated(dls):
    with dls.open("r+b") as file:
        file.truncate(dls.stat().st_size // 2)
    refused(dls, "truncated file", "copy it again")


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_no_permission(dls, closed, unprivileged):
    (dls if closed == "file" else dls.parent).chmod(0)
    with unprivileged():
        refused(dls, "cannot be read .Permission denied.", "check its permissions")
    dls.parent.chmod(0o755)


def test_no_scan_lists_what_was_tried_and_what_is_there(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["raw/stack"] = DATA
        file["raw/mean"] = DATA[0]
    refused(
        path,
        "entry1/tomo_entry/data/data",
        "entry0000/instrument/detector/data",
        "exchange/data",
        r"give data_path; 3D data sets in the file: /raw/stack \(15x7x11 uint16\)$",
    )


def test_nothing_three_dimensional(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["image"] = DATA[0]
    refused(path, "there is no 3D data set in the file")


@pytest.mark.parametrize("data", [DATA[0], DATA[np.newaxis]])
def test_two_and_four_dims(tmp_path, data):
    path = scans.write_dls(tmp_path / "a.h5", data, keys=None)
    refused(path, f"holds {data.ndim} dims", "a scan has three dims")


def test_no_frames(tmp_path):
    refused(scans.write_dls(tmp_path / "a.h5", DATA[:0], keys=None), "holds nothing")


@pytest.mark.parametrize("data", [DATA.astype("complex64"), DATA.astype("S4")])
def test_what_is_not_grey(tmp_path, data):
    refused(scans.write_dls(tmp_path / "a.h5", data), "not grey values")


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
        (ANGLES, np.ones((15, 2)), "has 2 dims, not one angle a projection"),
    ],
)
def test_image_keys_and_angles_that_are_none(dls, name, value, message):
    replace(dls, name, value)
    refused(dls, message)


def test_angles_in_strange_units(dls):
    with h5py.File(dls, "a") as file:
        file[ANGLES].attrs["units"] = "counts"
    refused(dls, "are in 'counts', neither degrees nor radians")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"data_path": "/raw/x"},
            "/raw/x is not in the file: give another data_path; 3D data",
        ),
        ({"data_path": "/entry1/tomo_entry"}, "is a group, not a data set"),
        ({"image_key_path": "/key"}, "give another image_key_path"),
        ({"rotation_angles": "/th"}, "give another rotation_angles"),
        ({"rotation_angles": AngleRange(0, 180, 2 * 10**9)}, "2000000000 rotation angles for 9 pr"),
        ({"flats": SideData(None, "/nothing")}, "/nothing is not in the file"),
        ({"flats": SideData(None, ANGLES)}, "holds 1 dims"),
        ({"flats": SideData(None, FRAMES, "/nokey")}, "/nokey is not in the file"),
    ],
)
def test_paths_that_lead_to_no_part(dls, options, message):
    refused(dls, message, options=LoaderOptions(**options))


def test_a_link_to_a_file_that_is_not_there(tmp_path):
    """As Diamond's files are: the data of the entry are a link to those of the detector."""
    path, frames = tmp_path / "a.nxs", "/entry1/tomo_entry/instrument/detector/data"
    with h5py.File(path, "w") as file:
        file[frames] = h5py.ExternalLink("raw_1.h5", "/entry/data")
        file["entry1/tomo_entry/data/data"] = h5py.SoftLink(frames)
    refused(path, f"a link to {frames}, a link to /entry/data in raw_1.h5, which leads to nothing")


@pytest.mark.parametrize("path", ["auto", "/entry1/tomo_entry/data/data"])
def test_a_link_to_itself(tmp_path, path):
    file_path, where = tmp_path / "a.nxs", "/entry1/tomo_entry/data/data"
    with h5py.File(file_path, "w") as file:
        file[where] = h5py.SoftLink(where)
    message = "is a link to .*/data/data, which leads to nothing"
    refused(file_path, message, options=LoaderOptions(data_path=path))


def test_a_file_that_is_read_while_a_program_writes_it(tmp_path):
    path, copy = tmp_path / "a.nxs", tmp_path / "copy.nxs"
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset("exchange/data", DATA.shape, "u2", chunks=(1, *DATA.shape[1:]))
        file.swmr_mode = True
        data[:4] = DATA[:4]
        data.flush()
        copy.write_bytes(path.read_bytes())  # in one process HDF5 opens the same file again
    refused(copy, "already open for write", "h5clear", "wait until it is written")


def test_a_damaged_chunk_is_found_when_it_is_read(tmp_path):
    path = scans.write_dls(tmp_path / "a.h5", DATA, chunks=(1, 7, 11), compression="gzip")
    with h5py.File(path) as file:
        chunk = file["entry1/tomo_entry/data/data"].id.get_chunk_info(4)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\0" * chunk.size)
    with open_source(path) as source, pytest.raises(SourceError) as raised:
        source.read(0, 0, 9, np.empty((9, 7, 11), np.uint16))
    assert str(path) in str(raised.value)
    assert "the file is damaged" in str(raised.value)


def test_a_side_file_without_that_side(tmp_path, dls):
    other = scans.write_dls(tmp_path / "other.h5", DATA, keys=None)
    refused(other, "there are no darks in it", options=LoaderOptions(darks=SideData(other)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flats.h5", r"flats\.h5: there is no such file"),
        ("flats.xyz", r"flats cannot be read from \.xyz"),
        ("flats.npy", r"flats of 7x10 pixels do not fit .* 7x11"),
    ],
)
def test_files_that_have_no_flats(tmp_path, dls, name, message):
    (tmp_path / "flats.xyz").write_text("no frames")
    np.save(tmp_path / "flats.npy", DATA[:, :, :10])
    with pytest.raises(SourceError, match=message):
        open_source(dls, LoaderOptions(flats=SideData(tmp_path / name)))


@pytest.mark.parametrize("flats", ["auto", SideData(None, "entry1/tomo_entry/data/data")])
def test_a_failure_leaves_no_file_open(dls, flats):
    replace(dls, ANGLES, np.arange(11.0))
    with pytest.raises(SourceError) as raised:
        open_source(dls, LoaderOptions(flats=flats))
    with h5py.File(dls, "a"):  # would be refused while it is open for reading
        assert raised.value.__traceback__ is not None  # which keeps an unclosed file open


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
@pytest.mark.parametrize("name", [KEY, ANGLES])
def test_a_part_behind_a_broken_link_is_not_a_part_that_is_missing(dls, name, link):
    """Without its image key, flats and darks would be taken for projections."""
    with h5py.File(dls, "a") as file:
        del file[name]
        file[name] = link(name)
    refused(dls, f"{name} is a link to", "leads to nothing")


def test_a_broken_link_to_the_group_of_the_image_key(dls):
    with h5py.File(dls, "a") as file:
        del file["entry1/tomo_entry/instrument"]
        file["entry1/tomo_entry/instrument"] = h5py.SoftLink("/nowhere")
    refused(dls, "instrument/detector/image_key cannot be reached: /entry1/tomo_entry/instrument")


def test_a_broken_link_elsewhere_does_not_matter(dls):
    with h5py.File(dls, "a") as file:
        file["entry0000"] = h5py.SoftLink("/nowhere")
        file["entry1/tomo_entry/sample/rotation_angle"] = h5py.SoftLink("/nowhere")
        file["entry1/tomo_entry/data/image_key"] = h5py.SoftLink("/nowhere")
    with open_source(dls) as source:
        assert source.flats is not None
        assert source.angles is not None


@pytest.mark.parametrize("name", [KEY, ANGLES, "entry1/tomo_entry/data/data"])
def test_a_part_that_is_damaged_is_not_a_part_that_is_missing(dls, name):
    with h5py.File(dls, "r") as file:
        header = h5py.h5o.get_info(file[name].id).addr
    with dls.open("r+b") as file:
        file.seek(header)
        file.write(b"\xff")
    refused(dls, "is damaged", "copy")


@pytest.mark.parametrize("part", ["data", "image_key"])
def test_a_chunk_that_is_said_to_be_of_gigabytes(tmp_path, part):
    """HDF5 takes memory of that size before it reads it."""
    path = scans.write_dls(tmp_path / "scan.nxs", DATA, chunks=(2, 4, 5), compression="gzip")
    name = "entry1/tomo_entry/data/data" if part == "data" else KEY
    with h5py.File(path, "a") as file:
        if part == "image_key":
            keys = file.pop(KEY)[:]
            file.create_dataset(KEY, data=keys, chunks=(5,), compression="gzip")
        chunk = file[name].id.get_chunk_info(1)
    raw = path.read_bytes()
    at = b"".join(n.to_bytes(8, "little") for n in (*chunk.chunk_offset, 0))
    entry = chunk.size.to_bytes(4, "little") + bytes(4) + at
    assert raw.count(entry) == 1
    path.write_bytes(raw.replace(entry, b"\xff" * 4 + entry[4:]))
    refused(path, "the index of its chunks is damaged", "of 4294967295 bytes", "copy it again")


def test_a_chunk_that_stands_for_gigabytes(tmp_path):
    path = tmp_path / "a.h5"
    bomb = zlib.compress(bytes(2**26), 9)
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "exchange/data", (2, 200, 200), "u2", chunks=(1, 200, 200), compression="gzip"
        )
        data[0] = 1
        data.id.write_direct_chunk((1, 0, 0), bomb)
    with open_source(path) as source:
        out = np.empty(source.spec.shape, source.spec.dtype)
        with pytest.raises(SourceError, match=r"has more than 80000 bytes.*is damaged"):
            source.read(0, 0, 2, out)


WITHOUT_MEMORY = """
import resource, sys
import h5py
from maxslices.io.hdf5.objects import OPENING_BYTES, open_hdf5
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + OPENING_BYTES // 2,) * 2)
held = []
try:
    while True:  # what the heap has left
        held.append(bytearray(2**16))
except MemoryError:
    pass
try:
    open_hdf5(sys.argv[1], "r")
except MemoryError:
    held.clear()
    print("memory")
"""


def test_without_memory_a_file_is_not_opened(dls):
    """HDF5 ends the process where it finds none for its caches."""
    command = [sys.executable, "-c", WITHOUT_MEMORY, str(dls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "memory\n"), done.stderr


def test_a_name_that_is_no_text_is_passed_over(tmp_path):
    path = scans.write_exchange(tmp_path / "scan.h5", scans.frames("uint16"))
    path.write_bytes(path.read_bytes().replace(b"exchange", b"exch\xffnge"))
    with pytest.raises(SourceError):
        open_source(path)


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
