"""Simulated scans with exact values: discs in a changing beam, in several layouts."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

SHAPE = (6, 64)
"""Rows and columns of a frame."""
DARK, BEAM = 100.0, 20000.0
"""Counts without beam, and of the beam at the beginning."""
DISCS = ((-0.2, 0.1, 0.3, 1.0), (0.3, 0.2, 0.12, 2.0), (0.1, -0.4, 0.15, 1.5))
"""Centre (x, y), radius and density of each disc, in units of half the width."""


def line_integrals(degrees, columns=64, rows=6, scale=0.02, centre=None):
    """Exact projections of the discs, shape (angles, rows, columns)."""
    half = columns / 2
    centre = (columns - 1) / 2 if centre is None else centre
    s = (np.arange(columns) - centre) / half
    t = np.deg2rad(np.asarray(degrees, float))[:, None]
    sums = np.zeros((len(degrees), columns))
    for x, y, radius, density in DISCS:
        squared = radius**2 - (s - x * np.cos(t) - y * np.sin(t)) ** 2
        sums += 2 * density * half * np.sqrt(np.clip(squared, 0, None))
    return np.repeat(scale * sums[:, None], rows, axis=1)


def disc_slice(columns=64, scale=0.02, samples=8):
    """The slice that `line_integrals` are of: (columns, columns), values per pixel."""
    n = columns * samples
    place = (np.arange(n) - (n - 1) / 2) / (n / 2)
    fine = np.zeros((n, n))
    for x, y, radius, density in DISCS:
        inside = (place - x) ** 2 + (-place[:, None] - y) ** 2 <= radius**2
        fine += density * inside
    return scale * fine.reshape(columns, samples, columns, samples).mean((1, 3))


def beam_profile(columns=64):
    """Beam along the columns: uneven, as beams are."""
    return 1 - 0.3 * np.linspace(-1, 1, columns) ** 2


def frames(level, n=5, seed=0, noise=10.0, shape=SHAPE):
    """Frames of a beam of this level, with noise. A level of 0 makes darks."""
    rng = np.random.default_rng(seed)
    mean = DARK + level * BEAM * beam_profile(shape[1])
    return np.rint(mean + rng.normal(0, noise, (n, *shape))).astype("u2")


def counts(line, level):
    """Counts behind the object, in a beam with a level for each projection."""
    beam = np.asarray(level)[:, None, None] * BEAM * beam_profile(line.shape[2])
    return np.rint(DARK + beam * np.exp(-line)).astype("u2")


def write_nxtomo(path: Path, parts, current=None):
    """Write an NXtomo file.

    `parts` are (kind, frames, degrees) in the order in which they were taken; the kind is a value
    of the image key. `current` has the current of the machine for each frame.
    """
    with h5py.File(path, "w") as file:
        entry = file.create_group("entry0000")
        entry.attrs["NX_class"] = "NXentry"
        entry["definition"] = "NXtomo"
        entry["instrument/detector/data"] = np.concatenate([each for _, each, _ in parts])
        key = np.concatenate([[kind] * len(each) for kind, each, _ in parts])
        entry["instrument/detector/image_key"] = key
        degrees = [np.broadcast_to(deg, len(each)) for _, each, deg in parts]
        angles = entry.create_dataset("sample/rotation_angle", data=np.concatenate(degrees))
        angles.attrs["units"] = "degree"
        if current is not None:
            stored = entry.create_dataset("control/data", data=np.asarray(current, float))
            stored.attrs["units"] = "mA"
    return path
