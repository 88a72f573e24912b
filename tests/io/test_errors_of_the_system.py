"""An error of the operating system is never called damage of a file."""

from __future__ import annotations

import errno
import os
import resource

import h5py
import numpy as np
import pytest

from maxslices import describe
from maxslices.errors import SourceError
from maxslices.io import open_source

from . import scans

DATA = scans.frames("uint16")
OF_SYSTEM = [errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT]
KINDS = {
    "contiguous": lambda folder: scans.write_dls(folder / "scan.nxs", DATA),
    "compressed": lambda folder: _compressed(folder / "scan.h5"),
    "npy": lambda folder: _npy(folder / "scan.npy"),
    "tiff": lambda folder: scans.write_multipage(folder / "scan.tif", DATA),
    "zipped tiff": lambda folder: scans.write_multipage(
        folder / "scan.tif", DATA, compression="zlib"
    ),
}


def _compressed(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("exchange/data", data=DATA, chunks=True, compression="lzf")
        file["exchange/theta"] = scans.DEGREES
    return path


def _npy(path):
    np.save(path, DATA)
    return path


@pytest.fixture(params=KINDS)
def scan(request, tmp_path):
    return KINDS[request.param](tmp_path)


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


@pytest.mark.parametrize("command", [lambda path: open_source(path).close(), describe])
def test_opening_where_too_many_files_are_open(scan, no_more_files, command):
    open_source(scan).close()  # imports what it needs
    no_more_files()
    with pytest.raises(SourceError, match=r"Too many open files\): .*ulimit -n"):
        command(scan)


@pytest.mark.parametrize("kind", ["contiguous", "npy", "tiff", "zipped tiff"])
def test_reading_where_too_many_files_are_open(tmp_path, no_more_files, kind):
    with open_source(KINDS[kind](tmp_path)) as source:
        out = np.empty(source.spec.shape, source.spec.dtype)
        source.read(0, 0, len(out), out)
        no_more_files()
        with pytest.raises(SourceError, match="Too many open files"):
            source.read(0, 0, len(out), out)


@pytest.mark.parametrize("number", OF_SYSTEM)
def test_what_hdf5_says_of_the_system(tmp_path, monkeypatch, number):
    """HDF5 has the number in its text, and h5py not always in the error."""
    path = _compressed(tmp_path / "scan.h5")

    def fail(*_args, **_kwargs):
        raise OSError(f"Can't read data (file read failed: errno = {number}, flags = 0)")

    with open_source(path) as source:
        monkeypatch.setattr(h5py.Dataset, "read_direct", fail)
        with pytest.raises(SourceError, match="cannot be read") as caught:
            source.read(0, 0, 1, np.empty((1, *source.spec.shape[1:]), source.spec.dtype))
    assert os.strerror(number) in str(caught.value)
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize("number", OF_SYSTEM)
@pytest.mark.parametrize("kind", ["contiguous", "npy", "tiff"])
def test_what_the_system_says_of_a_file_that_is_read(tmp_path, monkeypatch, kind, number):
    def fail(*_args):
        raise OSError(number, os.strerror(number))

    with open_source(KINDS[kind](tmp_path)) as source:
        out = np.empty((1, *source.spec.shape[1:]), source.spec.dtype)
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(SourceError, match="cannot be read") as caught:
            source.read(0, 0, 1, out)
    assert os.strerror(number) in str(caught.value)
    assert "damaged" not in str(caught.value)


def test_no_memory_of_the_system_is_a_memory_error(tmp_path, monkeypatch):
    def fail(*_args):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with open_source(_npy(tmp_path / "scan.npy")) as source:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(MemoryError, match="Cannot allocate memory"):
            source.read(0, 0, 1, np.empty((1, *source.spec.shape[1:]), source.spec.dtype))
