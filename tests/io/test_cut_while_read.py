"""A scan that another program cuts while it is read is an error in one line.

A part of a file that is mapped into memory ends the process (SIGBUS) when the file becomes shorter.
So nothing of a scan is ever mapped while it is read.
"""

from __future__ import annotations

import subprocess
import sys

import h5py
import pytest

from . import scans

KINDS = [
    "dls", "chunked", "exchange", "npy", "tiffs", "tiffs-deflate", "multipage",
    "multipage-deflate", "imagej", "virtual", "external", "small chunks",
]  # fmt: skip
READ = """
import os, sys
from pathlib import Path
import numpy as np
from maxslices.errors import SourceError
from maxslices.io import open_source

mapped = []
def note(event, arguments):
    if event == "mmap.__new__" and arguments[0] >= 0:
        mapped.append(arguments)

path, cut = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
files = [Path(root) / name for each in cut for root, _, names in os.walk(each) for name in names]
with open_source(path) as source:
    sys.addaudithook(note)
    spec = source.spec
    for slice_dim in (0, 1, 0, 1):
        out = np.empty(spec.with_slices(slice_dim, spec.shape[slice_dim]).shape, spec.dtype)
        try:
            source.read(slice_dim, 0, spec.shape[slice_dim], out)
            print("whole")
        except SourceError as error:
            print("refused", "\\n" in str(error))
        maps = Path("/proc/self/maps").read_text()
        mapped += [each for each in (*files, *cut) if str(each) in maps]
        if slice_dim == 1:
            for each in files or cut:
                os.truncate(each, min(each.stat().st_size, 300))
print(mapped)
"""


def write_scan(folder, kind):
    """Write a scan of a kind: its path, and the files and folders that have its pixels."""
    data = scans.frames("uint16", (scans.KEYS.size, 40, 300))
    written = scans.write_all(folder, data)
    if kind in written:
        return written[kind], [written[kind]]
    path = folder / "scan.h5"
    if kind == "small chunks":  # which the HDF5 library reads
        scans.write_dls(path, data, chunks=(1, 2, 5), compression="lzf")
        return path, [path]
    with h5py.File(path, "w") as file:
        if kind == "external":
            raw = folder / "pixels.raw"
            raw.write_bytes(data.tobytes())
            file.create_dataset(
                "exchange/data", data.shape, data.dtype, external=[(str(raw), 0, data.nbytes)]
            )
            return path, [raw]
        layout = h5py.VirtualLayout(data.shape, data.dtype)
        source = scans.write_dls(folder / "source.h5", data)
        layout[:] = h5py.VirtualSource(source, "entry1/tomo_entry/data/data", data.shape)
        file.create_virtual_dataset("exchange/data", layout)
        return path, [source]


@pytest.mark.parametrize("kind", KINDS)
def test_no_scan_is_mapped_and_a_cut_one_is_refused(tmp_path, kind):
    path, cut = write_scan(tmp_path, kind)
    done = subprocess.run(
        [sys.executable, "-c", READ, path, *cut], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *message, mapped = done.stdout.splitlines()
    assert message[:2] == ["whole", "whole"]
    # HDF5 reads zeros behind the end of a file: a run finds its other size after each section.
    by_hdf5 = kind in ("virtual", "external", "small chunks")
    assert set(message[2:]) <= ({"refused False", "whole"} if by_hdf5 else {"refused False"})
    assert mapped == "[]"
