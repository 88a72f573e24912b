"""Scans to work on, made fast."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from maxslices.io import ArrayScan
from maxslices.io.frames.frames import Frames, IndexRange, Selection
from maxslices.io.scans.frame_source import FrameSource

from .machine import pinned, write_all

N_PLATES = 64


def plates(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Return frames of noise, (N_PLATES, rows, columns) uint16 below 200."""
    rng = np.random.default_rng(seed)
    few = rng.integers(0, 200, (8, rows, columns), np.uint16)
    return np.concatenate([np.roll(few, 7 * k, axis=2) for k in range(N_PLATES // 8)])


def fill(out: np.ndarray) -> None:
    """Fill projections by threads: noise around 30000, never twice the same within 64."""
    stack = plates(*out.shape[1:]) + np.uint16(30000)

    def one(k: int) -> None:
        np.copyto(out[k], stack[k % N_PLATES])

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, range(len(out))))


def frames(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 20 flats and 20 darks."""
    stack = plates(rows, columns, seed=1)[:20]
    return stack + np.uint16(60000), stack // np.uint16(20)


def _pinned(array: np.ndarray) -> np.ndarray:
    held = pinned(array.shape, array.dtype.str)
    held[...] = array
    return held


def scan_of(data: np.ndarray, is_pinned: bool = False) -> ArrayScan:
    """Return an array as a scan with flats, darks and angles over half a turn."""
    flats, darks = frames(*data.shape[1:])
    if is_pinned:
        flats, darks = _pinned(flats), _pinned(darks)
    angles = np.linspace(0, np.pi, len(data), endpoint=False, dtype=np.float32)
    return ArrayScan(data, flats=flats, darks=darks, angles=angles)


class TiledFrames(Frames):
    """A scan larger than memory: one plate, again and again, plus the frame's number."""

    reads_rows = False  # so that data go through a store, which is what is measured

    def __init__(self, shape: tuple[int, int, int], n_plates: int = 8) -> None:
        from maxslices import ArraySpec

        self.name = "tiled"
        self.spec = ArraySpec(shape, np.dtype("uint16"))
        self.plates = plates(*shape[1:])[:n_plates].copy()
        self._pool = ThreadPoolExecutor(8)

    def frame(self, k: int) -> np.ndarray:
        """Return one frame."""
        return self.plates[k % len(self.plates)]

    def read(self, frames: Any, rows: IndexRange, columns: IndexRange, out: Any) -> None:
        """Copy a box, by threads."""

        def one(i: int) -> None:
            np.copyto(out[i], self.frame(frames[i])[slice(*rows), slice(*columns)])

        list(self._pool.map(one, range(len(frames))))

    def close(self) -> None:
        """Do nothing."""


def tiled(shape: tuple[int, int, int]) -> tuple[FrameSource, TiledFrames]:
    """Return a scan of tiles, and what it is made of."""
    stack = TiledFrames(shape)
    return FrameSource("tiled", Selection.of(stack)), stack


def write_nexus(path: Path, n_angles: int, rows: int, columns: int) -> tuple[int, int]:
    """Write the scan of an ellipse with a rod in it, one frame a chunk, by threads.

    Returns
    -------
    (int, int)
        Offset of the first frame in the file, and bytes of all frames.
    """
    degrees = np.linspace(0, 180, n_angles)
    x = np.linspace(-1, 1, columns)
    noise = plates(rows, columns)
    shape = (n_angles + 40, rows, columns)
    with h5py.File(path, "w") as file:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((1, rows, columns))
        created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        group = file.create_group("entry1/tomo_entry/data")
        space = h5py.h5s.create_simple(shape)
        dataset = h5py.h5d.create(group.id, b"data", h5py.h5t.STD_U16LE, space, created)
        offsets: dict[int, int] = {}

        def note(info: Any) -> None:
            offsets[info.chunk_offset[0]] = info.byte_offset

        dataset.chunk_iter(note)
        key = np.r_[np.full(20, 2), np.full(20, 1), np.zeros(n_angles)].astype("i4")
        file["entry1/tomo_entry/instrument/detector/image_key"] = key
        file["entry1/tomo_entry/data/rotation_angle"] = np.r_[np.zeros(40), degrees]

    def one(k: int) -> None:
        frame = noise[k % N_PLATES]
        if k >= 40:
            rod = 0.4 * np.cos(np.deg2rad(degrees[k - 40]))
            depth = 2 * np.sqrt(np.clip(0.81 - x**2, 0, None))
            depth += 2 * np.sqrt(np.clip(0.04 - (x - rod) ** 2, 0, None))
            frame = frame + (40000 * np.exp(-depth)).astype(np.uint16)
        elif k >= 20:
            frame = frame + np.uint16(40000)
        write_all(handle, np.ascontiguousarray(frame), offsets[k])

    handle = os.open(path, os.O_WRONLY)
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(one, range(len(offsets))))
    finally:
        os.close(handle)
    return offsets[40], n_angles * rows * columns * 2
