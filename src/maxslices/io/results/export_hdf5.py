"""A whole result as another HDF5 file: with grey levels, or compressed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from ...system import threads
from ...system.threads import parallel_for
from ..hdf5.open_hdf5 import open_hdf5
from .nexus_notes import describe_data
from .whole_result import GreyLevels, WholeResult

LEVEL = 1
"""Level of deflate: reconstructed float32 slices take 60 % at 70 MB/s a core; at level 4 59 % at
61 MB/s, at level 9 58 % at 5 MB/s."""


def write_hdf5(
    whole: WholeResult,
    path: Path,
    levels: GreyLevels | None,
    compressed: bool,
    advance: Callable[[int], None],
) -> None:
    """Write the new file `path`: the same as the result, with other data.

    Compression is shuffle and deflate, which every HDF5 library has. Slices are compressed by
    several threads.
    """
    with open_hdf5(path, "x", libver=("v110", "v110")) as file:
        with open_hdf5(whole.path, "r") as given:
            for name, value in given.attrs.items():
                file.attrs[name] = value
            _copy_notes(given["entry"], file)
        group = file["entry/data"]
        dtype = whole.dtype if levels is None else levels.dtype
        filters = {"shuffle": True, "compression": "gzip", "compression_opts": LEVEL}
        data = group.create_dataset(
            "data",
            whole.shape,
            dtype,
            chunks=(1, *whole.shape[1:]),
            **(filters if compressed else {}),
        )
        describe_data(data, whole.info)
        if levels is not None:
            group["scaling_factor"], group["offset"] = levels.scale, levels.low
        _write_slices(data, whole, levels, compressed, advance)


def _copy_notes(entry: h5py.Group, file: h5py.File) -> None:
    """Copy all but the data."""
    made = file.create_group("entry")
    for name, value in entry.attrs.items():
        made.attrs[name] = value
    for name in entry:
        if name != "data":
            entry.copy(name, made)
    group = made.create_group("data")
    for name, value in entry["data"].attrs.items():
        group.attrs[name] = value
    for name in entry["data"]:
        if name != "data":
            entry["data"].copy(name, group)


def _write_slices(
    data: h5py.Dataset,
    whole: WholeResult,
    levels: GreyLevels | None,
    compressed: bool,
    advance: Callable[[int], None],
) -> None:
    some: list[NDArray[np.generic]] = []
    for number, image in enumerate(whole.slices(levels)):
        some.append(image)
        if len(some) < threads.N_DECODERS and number < whole.shape[0] - 1:
            continue
        first = number + 1 - len(some)
        chunks: list[bytes | memoryview] = [image.data.cast("B") for image in some]
        if compressed:

            def compress(i: int) -> None:
                chunks[i] = zlib.compress(_shuffled(some[i]), LEVEL)  # noqa: B023

            parallel_for(len(some), compress, threads.N_DECODERS)
        for i, chunk in enumerate(chunks):
            data.id.write_direct_chunk((first + i, 0, 0), chunk)
        advance(len(some))
        some = []


def _shuffled(image: NDArray[np.generic]) -> bytes:
    """Bytes of an image, the first of every value before the second, as HDF5's filter has them."""
    return image.reshape(-1).view(np.uint8).reshape(-1, image.itemsize).T.tobytes()
