"""HDF5 that finds no memory, which is no damage of the file."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from maxslices.errors import SourceError
from maxslices.io import open_source
from maxslices.io.hdf5.frames import Hdf5File, Hdf5Frames
from maxslices.io.library_errors import library_errors

SAID = "Can't synchronously read data (memory allocation failed for raw data buffer)"


@pytest.fixture
def frames(tmp_path):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "data", data=np.zeros((4, 5, 6), "f4"), chunks=(1, 2, 3), fletcher32=True
        )
    found = Hdf5Frames(Hdf5File(path), "data")
    yield found
    found.close()


@pytest.mark.parametrize("error", [MemoryError("no memory"), OSError(SAID)])
def test_frames_for_which_it_has_none_are_not_called_damaged(frames, monkeypatch, error):
    def read_direct(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(h5py.Dataset, "read_direct", read_direct)
    with pytest.raises(MemoryError, match="memory"):
        frames.read(np.arange(4), (0, 5), (0, 6), np.empty((4, 5, 6), "f4"))


def test_an_error_is_told_where_the_filters_cannot_be_read_either(frames, monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("Unspecified error in H5Dget_create_plist (return value <0)")

    def read_direct(*_args, **_kwargs):
        raise OSError("Can't synchronously read data")

    monkeypatch.setattr(h5py.Dataset, "read_direct", read_direct)
    monkeypatch.setattr("maxslices.io.hdf5.frames.filters", fail)
    with pytest.raises(SourceError, match="frames 0:4 cannot be read"):
        frames.read(np.arange(4), (0, 5), (0, 6), np.empty((4, 5, 6), "f4"))


def test_metadata_for_which_it_has_none_are_not_called_damaged():
    with pytest.raises(MemoryError, match="memory allocation failed"), library_errors("scan.h5"):
        raise_in_library(SAID)


def raise_in_library(text):
    """Raise an error as h5py's code does."""
    exec("raise OSError(text)", {"__name__": "h5py.test", "text": text})


@pytest.fixture
def damaged_heap(tmp_path):
    """A scan whose heap of names has a size and an address that are noise."""
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["entry/data"] = np.zeros((4, 5, 6), "f4")
    content = bytearray(path.read_bytes())
    at = content.index(b"HEAP") + 14
    content[at : at + 16] = b"wxZwxZwxZwxZwxZw"
    path.write_bytes(content)
    return path


def test_a_heap_larger_than_any_memory_is_damage_of_the_file(damaged_heap):
    with pytest.raises(SourceError, match=r"is damaged .*on disk image"), open_source(damaged_heap):
        pass


def test_where_there_is_no_memory_at_all_it_is_not(damaged_heap, monkeypatch):
    monkeypatch.setattr("maxslices.io.library_errors._is_there", lambda n_bytes: False)
    with pytest.raises(MemoryError, match="on disk image"), open_source(damaged_heap):
        pass
