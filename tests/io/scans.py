"""One small scan, written in every way in which a scan can come, and what is read of it."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile

from maxslices.errors import SourceError
from maxslices.io import LoaderOptions, Source, open_source

KEYS = np.array([2, 1, 0, 0, 0, 1, 0, 3, 0, 0, 0, 2, 0, 1, 0])
DEGREES = np.linspace(-3.0, 180.0, KEYS.size)


def frames(dtype: str = "uint16", shape: tuple[int, int, int] = (KEYS.size, 7, 11)) -> np.ndarray:
    """Frames in which every value is different, so far as the dtype allows."""
    values = np.arange(np.prod(shape)).reshape(shape)
    return (values % 120 if np.dtype(dtype).itemsize == 1 else values).astype(dtype)


def projections(all_frames: np.ndarray) -> np.ndarray:
    return all_frames[KEYS == 0]


def write_dls(path: Path, data: np.ndarray, keys: np.ndarray | None = KEYS, **kwargs) -> Path:
    with h5py.File(path, "w") as file:
        entry = file.create_group("entry1/tomo_entry")
        entry.create_dataset("data/data", data=data, **kwargs)
        if keys is not None:
            entry["instrument/detector/image_key"] = keys
        entry["data/rotation_angle"] = DEGREES[: len(data)]
    return path


def write_nxtomo(path: Path, data: np.ndarray, entry: str = "entry0000") -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group(entry)
        group["definition"] = "NXtomo"
        group["instrument/detector/data"] = data
        group["instrument/detector/image_key"] = KEYS
        group["sample/rotation_angle"] = DEGREES
        group["sample/rotation_angle"].attrs["units"] = "degree"
    return path


def write_exchange(path: Path, data: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        file["exchange/data"] = projections(data)
        file["exchange/data_white"] = data[KEYS == 1]
        file["exchange/data_dark"] = data[KEYS == 2]
        file["exchange/theta"] = DEGREES[KEYS == 0]
    return path


def write_npy(path: Path, data: np.ndarray) -> Path:
    np.save(path, projections(data))
    return path


def write_tiffs(folder: Path, data: np.ndarray, **kwargs) -> Path:
    """Write a folder whose names sort wrongly as text: p_8, p_9, p_10."""
    folder.mkdir()
    for i, frame in enumerate(projections(data), start=4):
        tifffile.imwrite(folder / f"p_{i}.tif", frame, **kwargs)
    return folder


def write_multipage(path: Path, data: np.ndarray, **kwargs) -> Path:
    with tifffile.TiffWriter(path) as file:
        for frame in projections(data):
            file.write(frame, contiguous=False, **kwargs)
    return path


def write_imagej(path: Path, data: np.ndarray) -> Path:
    """Write a stack as ImageJ does beyond 4 GiB: one page, and the frames behind it."""
    tifffile.imwrite(path, projections(data), imagej=True, truncate=True)
    return path


def write_all(folder: Path, data: np.ndarray) -> dict[str, Path]:
    """Write the scan in every way; kind -> path."""
    big_endian = data.astype(data.dtype.newbyteorder(">"))
    return {
        "dls": write_dls(folder / "dls.nxs", data),
        "chunked": write_dls(folder / "chunked.h5", data, chunks=(2, 4, 5), compression="gzip"),
        "big-endian": write_dls(folder / "big.h5", big_endian),
        "esrf": write_nxtomo(folder / "esrf.nx", data),
        "nxtomo": write_nxtomo(folder / "other.nxs", data, "measured/scan_7"),
        "exchange": write_exchange(folder / "aps.h5", data),
        "npy": write_npy(folder / "scan.npy", data),
        "npy-big-endian": write_npy(folder / "big.npy", big_endian),
        "tiffs": write_tiffs(folder / "tiffs", data),
        "tiffs-big-endian": write_tiffs(folder / "big_tiffs", data, byteorder=">"),
        "tiffs-deflate": write_tiffs(folder / "zipped", data, compression="zlib"),
        "multipage": write_multipage(folder / "pages.tif", data),
        "multipage-deflate": write_multipage(folder / "zipped.tiff", data, compression="zlib"),
        **(
            {"imagej": write_imagej(folder / "imagej.tif", data)}
            if data.dtype in (np.uint8, np.uint16, np.float32)  # ImageJ has no others
            else {}
        ),
    }


def whole(scan: Source | Path, options: LoaderOptions | None = None) -> np.ndarray:
    """All projections of a scan, which stays open if it is a source."""
    if not isinstance(scan, Source):
        with open_source(scan, options) as source:
            return whole(source)
    out = np.empty(scan.spec.shape, scan.spec.dtype)
    scan.read(0, 0, len(out), out)
    return out


def refused(path: Path, *patterns: str, options: LoaderOptions | None = None) -> str:
    """Assert that opening fails with one line that names the file and holds all `patterns`."""
    with pytest.raises(SourceError) as raised:
        open_source(path, options)
    message = str(raised.value)
    assert "\n" not in message
    for pattern in (re.escape(str(path)), *patterns):
        assert re.search(pattern, message), message
    return message
