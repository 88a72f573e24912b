"""An error of the operating system, or a lack of memory, is never called damage of a file."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import h5py
import numpy as np
import pytest

from maxslices import describe
from maxslices.errors import SourceError
from maxslices.io import open_source
from maxslices.io.files import library_errors

from . import scans

DATA = scans.frames("uint16")
OF_SYSTEM = [errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT]
KINDS = {
    "hdf5": lambda folder: scans.write_dls(folder / "scan.nxs", DATA),
    "lzf": lambda folder: scans.write_dls(folder / "lzf.h5", DATA, chunks=True, compression="lzf"),
    "npy": lambda folder: scans.write_npy(folder / "scan.npy", DATA),
    "tiff": lambda folder: scans.write_multipage(folder / "scan.tif", DATA),
    "zipped tiff": lambda folder: scans.write_multipage(
        folder / "scan.tif", DATA, compression="zlib"
    ),
}


@pytest.fixture
def no_more_files():
    """Let this process open no further file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = []

    def use_up():
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), limits[1]))
        try:
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass

    yield use_up
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("command", [open_source, describe])
@pytest.mark.parametrize("kind", KINDS)
def test_opening_where_too_many_files_are_open(tmp_path, no_more_files, kind, command):
    scan = KINDS[kind](tmp_path)
    open_source(scan).close()  # imports what it needs
    no_more_files()
    with pytest.raises(SourceError, match=r"Too many open files\): .*ulimit -n"):
        command(scan)


@pytest.mark.parametrize("kind", ["hdf5", "npy", "tiff", "zipped tiff"])
def test_reading_where_too_many_files_are_open(tmp_path, no_more_files, kind):
    with open_source(KINDS[kind](tmp_path)) as source:
        scans.whole(source)
        no_more_files()
        with pytest.raises(SourceError, match="Too many open files"):
            scans.whole(source)


@pytest.mark.parametrize("number", [*OF_SYSTEM, errno.ENOMEM])
@pytest.mark.parametrize("kind", ["hdf5", "npy", "tiff", "lzf"])
def test_what_the_system_says_of_a_file_that_is_read(tmp_path, monkeypatch, kind, number):
    def fail(*_args, **_kwargs):
        if kind != "lzf":
            raise OSError(number, os.strerror(number))
        # HDF5 has the number in its text, and h5py not always in the error.
        raise OSError(f"Can't read data (file read failed: errno = {number}, flags = 0)")

    error = MemoryError if number == errno.ENOMEM else SourceError
    with open_source(KINDS[kind](tmp_path)) as source:
        monkeypatch.setattr(os, "preadv", fail)
        monkeypatch.setattr(h5py.Dataset, "read_direct", fail)
        with pytest.raises(error, match=os.strerror(number)) as caught:
            source.read(0, 0, 1, np.empty((1, *source.spec.shape[1:]), source.spec.dtype))
    assert "damaged" not in str(caught.value)


SAID = "Can't synchronously read data (memory allocation failed for raw data buffer)"


@pytest.mark.parametrize("error", [MemoryError("no memory"), OSError(SAID)])
def test_frames_for_which_hdf5_has_no_memory_are_not_called_damaged(tmp_path, monkeypatch, error):
    def read_direct(*_args, **_kwargs):
        raise error

    with open_source(KINDS["lzf"](tmp_path)) as source:
        monkeypatch.setattr(h5py.Dataset, "read_direct", read_direct)
        with pytest.raises(MemoryError, match="memory"):
            scans.whole(source)


def test_metadata_for_which_hdf5_has_no_memory_are_not_called_damaged():
    with pytest.raises(MemoryError, match="memory allocation failed"), library_errors("scan.h5"):
        exec("raise OSError(text)", {"__name__": "h5py.test", "text": SAID})


def test_a_heap_larger_than_any_memory_is_damage_of_the_file(tmp_path):
    """Its size and address are noise."""
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["entry/data"] = np.zeros((4, 5, 6), "f4")
    content = bytearray(path.read_bytes())
    at = content.index(b"HEAP") + 14
    content[at : at + 16] = b"wxZwxZwxZwxZwxZw"
    path.write_bytes(content)
    scans.refused(path, r"is damaged .*on disk image")


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


def test_without_memory_a_file_is_not_opened(tmp_path):
    """HDF5 ends the process where it finds none for its caches."""
    command = [sys.executable, "-c", WITHOUT_MEMORY, str(KINDS["hdf5"](tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "memory\n"), done.stderr
