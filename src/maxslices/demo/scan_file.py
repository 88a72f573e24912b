"""A simulated scan of the phantom, written as an NXtomo file.

It has the faults of a real scan: photon noise by the Beer-Lambert law, an uneven beam, an offset,
read noise and 16 bits. The response of some pixels drifts between flats and projections, which
causes rings. The rotation axis is off centre by a fraction of a pixel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..runner.report.progress import Progress, ProgressOnAll
from ..system.disk_space import reserve
from .phantom import Phantom

N_FLATS = N_DARKS = 20
"""Flats and darks. The noise of their mean is a fifth of that of one frame."""
PHOTONS = 40_000
"""Photons on a pixel in the middle of the open beam in one frame, one count each.

The noise is 0.5 %, as in a good scan, and the counts fit 16 bits.
"""
OFFSET_COUNTS = 180.0
"""Mean counts of a dark. CMOS cameras have one to several hundred."""
READ_NOISE_COUNTS = 3.0
"""Standard deviation of the read noise in counts. CMOS cameras have a few."""
LAYOUT_BYTES = 2**17
"""Disk space for HDF5's index and metadata: 60 kB for the demo's 581 frames."""


@dataclass(frozen=True, slots=True)
class PhantomScan:
    """A scan file and its phantom."""

    path: Path
    """The NXtomo file."""
    phantom: Phantom
    """The phantom."""
    axis: float
    """Detector column of the rotation axis."""
    shape: tuple[int, int, int]
    """Projections: (angles, detector_y, detector_x), uint16."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the projections."""
        return int(np.prod(self.shape)) * 2


def make_scan(
    path: Path,
    phantom: Phantom,
    n_angles: int,
    shift: float,
    photons: float = PHOTONS,
    progress: Progress | None = None,
) -> PhantomScan:
    """Simulate a scan over half a turn, ends included, and write the file.

    Parameters
    ----------
    path : pathlib.Path
        File to write. An existing file is replaced.
    phantom : Phantom
        The phantom.
    n_angles : int
        Number of projections.
    shift : float
        Columns from the detector's middle to the rotation axis.
    photons : float
        Photons on a pixel in the middle of the open beam, in one frame.
    progress : Progress, optional
        Shows the rows projected, which takes most of the time, and the frames exposed.

    Raises
    ------
    ValueError
        If the phantom's shadow leaves the detector.
    OSError
        If the file cannot be written, or its disk is full.
    """
    progress = ProgressOnAll() if progress is None else progress
    rng = np.random.default_rng(2160)
    shape = (n_angles, phantom.rows, phantom.columns)
    degrees = np.linspace(0, 180, n_angles)
    axis = (phantom.columns - 1) / 2 + shift

    beam = photons * _beam(phantom.rows, phantom.columns) * rng.normal(1, 0.02, shape[1:])
    offset = OFFSET_COUNTS + rng.normal(0, 4, shape[1:])
    drift = rng.normal(1, 0.002, shape[1:])
    drift[rng.random(shape[1:]) < 0.02] += 0.05 * rng.choice([-1, 1])
    drift[rng.random(shape[1:]) < 0.01] -= 0.08

    progress.start("projecting the phantom", phantom.rows)
    integrals = phantom.line_integrals(np.deg2rad(degrees), axis, progress.advance)
    transmitted = np.exp(-integrals)
    transmitted *= beam * drift
    path.unlink(missing_ok=True)
    # HDF5 cannot close a file on a full disk: h5py prints errors, and crashes when Python exits.
    n_frames = N_DARKS + N_FLATS + n_angles
    reserve(path, 2 * n_frames * phantom.rows * phantom.columns + LAYOUT_BYTES, os.O_CREAT)
    path.unlink()
    with h5py.File(path, "w") as file:
        frames = _layout(file, shape, degrees, phantom.pixel_mm)

        def expose(first: int, expected: NDArray[Any]) -> None:
            counts = rng.poisson(expected).astype(np.float32)
            counts += offset
            counts += READ_NOISE_COUNTS * rng.standard_normal(counts.shape, np.float32)
            np.clip(np.rint(counts, out=counts), 0, 65535, out=counts)
            frames[first : first + len(counts)] = counts.astype(np.uint16)

        expose(0, np.zeros((N_DARKS, *shape[1:])))
        expose(N_DARKS, np.broadcast_to(beam, (N_FLATS, *shape[1:])))
        progress.start("exposing frames", n_angles)
        for start in range(0, n_angles, 32):
            exposed = transmitted[start : start + 32]
            expose(N_DARKS + N_FLATS + start, exposed)
            progress.advance(len(exposed))
    return PhantomScan(path, phantom, axis, shape)


def _beam(rows: int, columns: int) -> NDArray[np.float64]:
    """Profile of the beam: bright in the middle, striped as by a multilayer mirror."""
    y, x = np.linspace(-1, 1, rows)[:, None], np.linspace(-1, 1, columns)
    stripes = 1 + 0.06 * np.sin(23 * y + 2) + 0.04 * np.sin(61 * y + 0.5 * x)
    return np.asarray(np.exp(-0.35 * y**2 - 0.25 * (x - 0.15) ** 2) * stripes)


def _layout(
    file: Any, shape: tuple[int, int, int], degrees: NDArray[np.float64], pixel_mm: float
) -> Any:
    """Create the groups of an NXtomo file as Diamond Light Source writes them."""
    n_frames = N_DARKS + N_FLATS + shape[0]
    groups = {
        "entry1": "NXentry",
        "entry1/tomo_entry": "NXsubentry",
        "entry1/tomo_entry/instrument": "NXinstrument",
        "entry1/tomo_entry/instrument/detector": "NXdetector",
        "entry1/tomo_entry/sample": "NXsample",
        "entry1/tomo_entry/data": "NXdata",
    }
    for name, nexus_class in groups.items():
        file.create_group(name).attrs["NX_class"] = nexus_class
    entry = file["entry1/tomo_entry"]
    entry["definition"] = "NXtomo"
    detector, sample, data = entry["instrument/detector"], entry["sample"], entry["data"]
    frames = detector.create_dataset(
        "data", (n_frames, *shape[1:]), np.uint16, chunks=(1, *shape[1:])
    )
    detector["image_key"] = np.repeat([2, 1, 0], [N_DARKS, N_FLATS, shape[0]]).astype(np.int32)
    for axis in ("x", "y"):
        sample[f"{axis}_pixel_size"] = pixel_mm
        sample[f"{axis}_pixel_size"].attrs["units"] = "mm"
    sample["name"] = "flower head in a glass tube"
    sample["rotation_angle"] = np.concatenate([np.zeros(N_DARKS + N_FLATS), degrees])
    sample["rotation_angle"].attrs["units"] = "deg"
    data["data"] = frames
    data["rotation_angle"] = sample["rotation_angle"]
    data["image_key"] = detector["image_key"]
    data.attrs["signal"] = "data"
    return frames
