"""Damaged global heaps, which the HDF5 library reads without end, are an error in one line.

All is read in another process, as only SIGKILL ends what hangs.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from maxslices import io
from maxslices.io import open_source
from maxslices.io.hdf5.global_heaps import CheckedHeaps
from maxslices.io.hdf5.links import BrokenPath, FileObjects, look_up
from tests.fuzz.mutate import heaps

from . import scans

DATA = scans.frames()
FRAMES = "entry1/tomo_entry/data/data"
OPEN = "from maxslices.io import open_source; open_source({!r}).close()"
DESCRIBE = "import maxslices; print(maxslices.describe({!r}))"
ENDLESS = [(0, 0), (0, 8), (0, 16), (1, 2**64 - 16), (1, 2**64 - 8)]
"""Number of an object of a heap -> a size with which HDF5 2.0 reads it without end."""


def damage(path, number=0, size=0):
    """Change the size of an object in all heaps of a file."""
    raw = bytearray(path.read_bytes())
    found = [at for heap in heaps(raw) for n, at in heap if n == number]
    assert found
    for at in found:
        struct.pack_into("<Q", raw, at + 8, size)
    path.write_bytes(raw)
    return path


def virtual(path, source, data_path=FRAMES, name="exchange/data"):
    layout = h5py.VirtualLayout(DATA.shape, DATA.dtype)
    layout[:] = h5py.VirtualSource(source, data_path, DATA.shape)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset(name, layout)
    return path


def ends(code: str) -> str:
    """Last line that a command of Python says, which ends of itself."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "SourceError" in done.stderr or not done.returncode, done
    return f"{done.stdout}{done.stderr}".strip().rpartition("\n")[2]


@pytest.fixture
def dls(tmp_path):
    return scans.write_dls(tmp_path / "scan.nxs", DATA)


def test_hdf5_itself_still_hangs(tmp_path, dls):
    """Else none of this is needed."""
    path = damage(virtual(tmp_path / "virtual.h5", "scan.nxs"))
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", f"import h5py; h5py.File({str(path)!r})['exchange/data']"],
            timeout=3,
        )


@pytest.mark.parametrize(("number", "size"), ENDLESS)
def test_of_the_frames(tmp_path, dls, number, size):
    path = damage(virtual(tmp_path / "virtual.h5", "scan.nxs"), number, size)
    said = ends(OPEN.format(str(path)))
    assert str(path) in said
    assert "is damaged (its global heap at byte" in said


def test_of_a_file_that_a_virtual_data_set_is_made_of(tmp_path, dls):
    damage(virtual(tmp_path / "inner.h5", "scan.nxs"))
    path = virtual(tmp_path / "outer.h5", "inner.h5", "exchange/data")
    said = ends(f"from maxslices.io import open_source; open_source({str(path)!r})")
    assert "inner.h5:exchange/data" in said


@pytest.mark.parametrize("n_soft", [0, 1, 2])
def test_behind_links(tmp_path, dls, n_soft):
    damage(virtual(tmp_path / "far.h5", "scan.nxs"))
    with h5py.File(tmp_path / "near.h5", "w") as file:
        file["link0"] = h5py.ExternalLink("far.h5", "/exchange")
        for number in range(n_soft):
            file[f"link{number + 1}"] = h5py.SoftLink(f"/link{number}")
        file["exchange/data"] = h5py.SoftLink(f"/link{n_soft}/data")
    said = ends(OPEN.format(str(tmp_path / "near.h5")))
    assert "near.h5" in said
    assert "far.h5: is damaged" in said


def test_of_units(tmp_path, dls):
    with h5py.File(dls, "a") as file:
        file["entry1/tomo_entry/data/rotation_angle"].attrs["units"] = "degree"
    assert "is damaged" in ends(OPEN.format(str(damage(dls))))


def test_of_units_behind_links(tmp_path, dls):
    """HDF5 names what is behind a soft link to an external one as in the first file."""
    with h5py.File(dls, "a") as file:
        angles = file["entry1/tomo_entry/data"].pop("rotation_angle")[:]
        file["link"] = h5py.ExternalLink("far.h5", "/angles")
        file["entry1/tomo_entry/data/rotation_angle"] = h5py.SoftLink("/link")
    with h5py.File(tmp_path / "far.h5", "w") as file:
        file["angles"] = np.asarray(angles)
        file["angles"].attrs["units"] = "degree"
    open_source(dls).close()
    damage(tmp_path / "far.h5")
    assert "far.h5: is damaged" in ends(OPEN.format(str(dls)))


def test_of_many_attributes(tmp_path, dls):
    """Of more than eight, HDF5 keeps them elsewhere than in the object."""
    with h5py.File(dls, "a", libver="latest") as file:
        angles = file["entry1/tomo_entry/data"].pop("rotation_angle")[:]
        file["entry1/tomo_entry/data/rotation_angle"] = angles
        for name in ["units", *map(str, range(20))]:
            file["entry1/tomo_entry/data/rotation_angle"].attrs[name] = "degree"
    assert "is damaged" in ends(OPEN.format(str(damage(dls))))


@pytest.mark.parametrize("options", [{}, {"chunks": (1,), "compression": "gzip"}])
def test_of_the_definition_of_an_entry(tmp_path, options):
    path = scans.write_nxtomo(tmp_path / "scan.nx", DATA, "elsewhere")
    with h5py.File(path, "a") as file:
        del file["elsewhere/definition"]
        file.create_dataset("elsewhere/definition", data=["NXtomo"], **options)
    open_source(path).close()
    assert "is damaged" in ends(OPEN.format(str(damage(path))))


@pytest.mark.parametrize("command", [OPEN, DESCRIBE])
def test_of_what_no_scan_is_made_of(tmp_path, dls, command):
    """What is beside the scan is left out, and found damaged where it is looked at."""
    with h5py.File(virtual(tmp_path / "both.h5", "scan.nxs"), "a") as file:
        file["entry1/tomo_entry/data/data"] = DATA
        file["entry1/tomo_entry/data/rotation_angle"] = scans.DEGREES
    assert "Error" not in ends(command.format(str(damage(tmp_path / "both.h5"))))


def test_of_a_structure(tmp_path, dls):
    path = damage(virtual(tmp_path / "virtual.h5", "scan.nxs"))
    code = "from pathlib import Path; from maxslices.io.scans import structure;"
    assert ends(f"{code} print(structure.structure_checksum(Path({str(path)!r})))") == "None"


def a_result(path):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("entry/data/data", data=DATA, chunks=(1, *DATA.shape[1:]))
        data.dims[0].label = "z"
    return path


SLICE = (
    "from pathlib import Path; from maxslices.io.results.result_slice import middle_slice;"
    "print(middle_slice(Path({!r}))[0])"
)


def test_of_the_axes_of_a_result(tmp_path):
    path = a_result(tmp_path / "result.h5")
    assert ends(SLICE.format(str(path))) == str(len(DATA) // 2)
    assert "is damaged" in ends(SLICE.format(str(damage(path))))


def test_of_a_map_where_a_result_should_be(tmp_path):
    path = virtual(tmp_path / "result.h5", str(tmp_path / "x.h5"), name="entry/data/data")
    assert "is damaged" in ends(SLICE.format(str(damage(path))))


def test_notes_of_a_result_are_not_read_for_its_slices(tmp_path, monkeypatch):
    from maxslices.io.results.result_slice import middle_slice

    path = a_result(tmp_path / "result.h5")
    monkeypatch.setattr(CheckedHeaps, "read_all", None)
    np.testing.assert_array_equal(middle_slice(path)[1], DATA[len(DATA) // 2])


def test_a_sound_heap_of_any_size_is_read(tmp_path):
    with h5py.File(tmp_path / "texts.h5", "w") as file:
        file["texts"] = [b"x" * (n % 50) for n in range(3000)]
        file.create_dataset("more", data=["x" * (n % 50) for n in range(70_000)])
        file["long"] = "y" * 100_000
        file.attrs["short"] = ["a", "b"]
    with CheckedHeaps() as checked:
        checked.read_all(tmp_path / "texts.h5")


def test_a_damaged_one_is_left_out_among_many(tmp_path, dls):
    path = damage(virtual(tmp_path / "virtual.h5", "scan.nxs", name="group/data"))
    with h5py.File(path, "a") as file:
        for number in range(250):
            file[f"group/{number}"] = number
    code = (
        "import h5py; from maxslices.io.hdf5.links import FileObjects;"
        f"print(len([*FileObjects(h5py.File({str(path)!r}))]))"
    )
    assert ends(code) == "251"


def test_no_file_stays_open(tmp_path, dls):
    with h5py.File(virtual(tmp_path / "virtual.h5", "scan.nxs"), "r") as file:
        before = h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)
        names = iter(FileObjects(file))
        next(names)
        assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE) == before


def test_a_virtual_data_set_without_end_is_not_opened_as_its_own_file(tmp_path, dls):
    """One that grows asks its files how long they are, when its shape is asked for."""
    most = (None, *DATA.shape[1:])
    layout = h5py.VirtualLayout(DATA.shape, DATA.dtype, maxshape=most)
    source = h5py.VirtualSource("other.h5", "exchange/data", DATA.shape, maxshape=most)
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    with h5py.File(tmp_path / "virtual.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("exchange/data", layout)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("exchange/data", data=DATA, maxshape=most)
    with open_source(tmp_path / "virtual.h5") as source:
        assert source.spec.shape == DATA.shape


def test_scans_attributes_are_read_in_one_place():
    """What reads them elsewhere may hang. Results are written, and checked where they are read."""
    folder = Path(io.__file__).parent
    users = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if ".attrs" in path.read_text()
    }
    of_results = {name for name in users if name.startswith("results/")}
    assert "results/hdf5_sink.py" in of_results
    assert users - of_results == {"hdf5/global_heaps.py"}


@pytest.mark.parametrize("target", [b"\xff\xfe", b"/entry1/\xff/data", b"../\xc3"])
def test_a_link_into_a_file_whose_target_is_no_text_leads_nowhere(tmp_path, target):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file["data"] = DATA
        file.id.links.create_external(b"damaged", b"scan.h5", target)
    with h5py.File(path) as file:
        assert isinstance(look_up(file, "damaged"), BrokenPath)
        assert [name for name, _ in FileObjects(file)] == ["/data"]
