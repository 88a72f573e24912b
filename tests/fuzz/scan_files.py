"""Damaged scans: HDF5, ``.npy`` and TIFF, opened and read in all ways."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import tifffile

from maxslices.io import open_source
from tests.io import scans

from .child import Outcome, cases
from .mutate import damaged, damaged_heap, hangs_hdf5

READ_BYTES = 2**24
"""Most bytes that are read at once from a file that declares more than it has."""


def read_all(path: Path) -> None:
    """Open a scan and read all of it, or the beginning and the end of a large one."""
    with open_source(path) as source:
        spec = source.spec
        for slice_dim in (0, 1):
            n_slices = spec.shape[slice_dim]
            slice_bytes = spec.with_slices(slice_dim, 1).nbytes
            if slice_bytes > READ_BYTES:
                continue
            step = min(n_slices, READ_BYTES // slice_bytes)
            for start in sorted({0, n_slices - step}):
                out = np.empty(spec.with_slices(slice_dim, step).shape, spec.dtype)
                source.read(slice_dim, start, start + step, out)
        for name, side in (("flats", source.flats), ("darks", source.darks)):
            if side is not None and side.nbytes < READ_BYTES:
                source.read_side(name, 0, 0, 1)


@cache
def seeds(folder: Path) -> dict[str, list[Path]]:
    """Small valid scans of each kind, in which damage mostly hits structure."""
    folder.mkdir(parents=True, exist_ok=True)
    data = scans.frames("uint16")
    hdf5 = [
        scans.write_dls(folder / "dls.nxs", data),
        scans.write_dls(folder / "zipped.h5", data, chunks=(2, 4, 5), compression="gzip"),
        scans.write_dls(folder / "plain.h5", data, chunks=(1, 7, 11)),
        scans.write_nxtomo(folder / "esrf.nx", data),
        scans.write_exchange(folder / "aps.h5", data),
        _virtual(folder, data),
        _large_chunks(folder / "large.h5"),
        _latest(folder / "latest.h5", data),
    ]
    npy = [
        scans.write_npy(folder / "scan.npy", data),
    ]
    tiff = [
        scans.write_multipage(folder / "pages.tif", data),
        scans.write_multipage(folder / "zipped.tif", data, compression="zlib"),
        scans.write_imagej(folder / "imagej.tif", data),
        _bigtiff(folder / "big.tif", data),
    ]
    return {"hdf5": hdf5, "npy": npy, "tiff": tiff}


def scan_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Damage scans of a kind."""
    sound = seeds(folder / "sound")[kind]
    whole = {path: path.read_bytes() for path in sound}
    for path in sound:  # children inherit these imports
        read_all(path)

    def case(random_: random.Random) -> None:
        path = random_.choice(sound)
        target = folder / "sound" / f"damaged{path.suffix}"
        damage = damaged_heap if random_.random() < 0.1 else damaged
        content = damage(whole[path], random_)
        if not hangs_hdf5(content):  # a defect of HDF5 itself: see SECURITY.md
            target.write_bytes(content)
            read_all(target)

    return cases(kind, seed, case)


def _virtual(folder: Path, data: np.ndarray) -> Path:
    layout = h5py.VirtualLayout(data.shape, data.dtype)
    layout[:8] = h5py.VirtualSource(folder / "dls.nxs", "entry1/tomo_entry/data/data", data.shape)[
        :8
    ]
    layout[8:] = h5py.VirtualSource("plain.h5", "entry1/tomo_entry/data/data", data.shape)[8:]
    with h5py.File(folder / "virtual.h5", "w") as file:
        file.create_virtual_dataset("exchange/data", layout)
        file["exchange/theta"] = h5py.ExternalLink(
            "dls.nxs", "entry1/tomo_entry/data/rotation_angle"
        )
    return folder / "virtual.h5"


def _large_chunks(path: Path) -> Path:
    """Chunks that are decompressed here, not by the library."""
    data = np.arange(6 * 130 * 140, dtype=np.uint16).reshape(6, 130, 140) // 50
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "exchange/data", data=data, chunks=(1, 130, 140), compression="gzip", shuffle=True
        )
    return path


def _latest(path: Path, data: np.ndarray) -> Path:
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("exchange/data", data=data, chunks=(1, 7, 11), maxshape=(None, 7, 11))
        file["exchange/theta"] = scans.DEGREES
        file["exchange/theta"].attrs["units"] = "degree"
    return path


def _bigtiff(path: Path, data: np.ndarray) -> Path:
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        for frame in data:
            file.write(frame, contiguous=False)
    return path
