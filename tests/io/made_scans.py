"""Small made scans of discs, with exact projections, and what is logged or warned about them."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

DISCS = (
    (-0.25, 0.1, 0.35, 1.0),
    (0.35, 0.25, 0.12, 2.0),
    (0.1, -0.45, 0.2, 1.5),
    (0.55, -0.1, 0.06, 3.0),
)
"""x, y, radius and density, in half the width of the detector."""
HALF_TURN = np.linspace(0, 180, 61)


def line_integrals(
    degrees,
    columns: int = 96,
    centre: float = 49.0,
    rows: int = 4,
    reach=None,
    scale=2.0,
    shrink=0.0,
) -> np.ndarray:
    """Attenuation (angles, rows, columns); the axis of rotation projects on column `centre`.

    `reach` columns are half the field of view. Discs shrink by `shrink` from row to row.
    """
    t = np.deg2rad(np.asarray(degrees, float))[:, None, None]
    at = (np.arange(columns) - centre) / (columns / 2 if reach is None else reach)
    size = (1 - shrink * np.arange(rows))[None, :, None]
    total = np.zeros((len(t), rows, columns))
    for x, y, radius, density in DISCS:
        chord = (radius * size) ** 2 - (at - x * np.cos(t) - y * np.sin(t)) ** 2
        total += density * np.sqrt(np.clip(chord, 0, None))
    return scale * total


def counts(degrees, **shape: Any) -> np.ndarray:
    """Counts of a detector with 20000 in the open beam and 100 in the dark."""
    return np.rint(20000 * np.exp(-line_integrals(degrees, **shape)) + 100).astype("u2")


def flats_and_darks(n: int = 3, rows: int = 4, columns: int = 96) -> tuple[np.ndarray, np.ndarray]:
    shape = (n, rows, columns)
    return np.full(shape, 20100, "u2"), np.full(shape, 100, "u2")


def put(file: h5py.File, values: dict[str, Any]) -> None:
    """Write data sets: path -> value, or (value, unit)."""
    for where, value in values.items():
        value, unit = value if isinstance(value, tuple) else (value, None)
        file[where] = value
        if unit is not None:
            file[where].attrs["units"] = unit


def write(path: Path, values: dict[str, Any]) -> Path:
    """Write an HDF5 file; see `put`."""
    with h5py.File(path, "w") as file:
        put(file, values)
    return path


def exchange(path: Path, degrees=HALF_TURN, theta: Any = "degrees", **values: Any) -> Path:
    """Write a Data Exchange file; `theta` None leaves the angles out."""
    flats, darks = flats_and_darks()
    with h5py.File(path, "w") as file:
        put(file, {"exchange/data": counts(degrees)})
        put(file, {"exchange/data_white": flats, "exchange/data_dark": darks})
        if theta is not None:
            file["exchange/theta"] = degrees if isinstance(theta, str) else theta
        put(file, values)
    return path


def nxtomo(path: Path, degrees=HALF_TURN, entry: str = "entry0000", **values: Any) -> Path:
    """Write an NXtomo file with 3 darks and 3 flats first; paths of `values` are in the entry."""
    flats, darks = flats_and_darks()
    with h5py.File(path, "w") as file:
        group = file.create_group(entry)
        group.attrs["NX_class"] = "NXentry"
        before = np.zeros(len(flats) + len(darks))
        put(
            group,
            {
                "definition": "NXtomo",
                "instrument/detector/data": np.concatenate([darks, flats, counts(degrees)]),
                "instrument/detector/image_key": np.r_[[2] * 3, [1] * 3, [0] * len(degrees)],
                "sample/rotation_angle": (np.r_[before, degrees], "degree"),
                **values,
            },
        )
    return path


class _Texts(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def noted():
    """Function that returns all that was logged or warned, as one text."""
    handler = _Texts()
    logging.getLogger().addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield lambda: "\n".join([*handler.texts, *(str(each.message) for each in caught)])
    finally:
        logging.getLogger().removeHandler(handler)
