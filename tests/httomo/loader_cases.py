"""Scans, and httomo loaders that read them in every documented way."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ENTRY = "entry1/tomo_entry"
DATA, KEY = f"{ENTRY}/data/data", f"{ENTRY}/instrument/detector/image_key"
ANGLES = f"{ENTRY}/data/rotation_angle"
FLATS_AROUND = np.repeat([2, 1, 0, 1], [3, 4, 19, 2])
"""Image key of most scans: projections in one piece, 7 frames before them and 2 behind."""

_SHAPES = {"even": (8, 10), "odd": (9, 11), "small": (3, 2)}


def write_scans(folder: Path) -> None:
    """Write all scans of the cases."""
    for name, shape in _SHAPES.items():
        _write(folder / f"{name}.nxs", FLATS_AROUND, shape)
    _write(folder / "floats.nxs", FLATS_AROUND, (5, 6), np.float32)
    _write(folder / "both_ends.nxs", np.repeat([2, 1, 0, 1, 2], [2, 3, 17, 3, 2]), (7, 9))
    for name, dtype in (("bytes", np.uint8), ("whole", np.int32), ("doubles", np.float64)):
        _write(folder / f"{name}.nxs", np.repeat([2, 1, 0], [2, 3, 11]), (5, 4), dtype)
    _write(folder / "invalid.nxs", np.repeat([2, 1, 0, -1, 3], [2, 3, 11, 1, 1]), (5, 4))
    _write(folder / "no_flats.nxs", np.repeat([2, 0], [3, 12]), (6, 7))
    _write(folder / "no_darks.nxs", np.repeat([1, 0], [3, 12]), (6, 7))
    _write(folder / "bare.nxs", np.zeros(14, int), (6, 7))
    _write(folder / "two_scans.nxs", np.repeat([2, 1, 0, 0], [1, 1, 15, 15]), (6, 7))
    with h5py.File(folder / "sides.h5", "w") as file:
        frames = np.arange(5 * 80).reshape(5, 8, 10).astype("u2")
        file["flats"], file["darks"], file["both"] = frames + 1, frames + 1000, frames + 3000
        file["key"] = [1, 2, 1, 0, 2]
        file["floats"] = frames.astype("f4")
    with h5py.File(folder / "linked.nxs", "w") as file:
        file["raw"] = h5py.ExternalLink("even.nxs", "entry1")
        file["entry1/tomo_entry"] = h5py.SoftLink("/raw/tomo_entry")


def _write(path: Path, key: np.ndarray, shape: tuple[int, int], dtype: Any = np.uint16) -> None:
    frames = np.arange(key.size * shape[0] * shape[1]).reshape(key.size, *shape).astype(dtype)
    with h5py.File(path, "w") as file:
        file[DATA] = frames
        file[KEY] = key
        file[ANGLES] = np.linspace(-10, 190, key.size)
        file[f"{ENTRY}/definition"] = "NXtomo"


_AUTO = {"data_path": "auto", "image_key_path": "auto", "rotation_angles": "auto"}
_PATHS = {"data_path": DATA, "image_key_path": KEY, "rotation_angles": {"data_path": ANGLES}}
_ANGLES = {
    "all": None,
    "first": {"start": 0, "stop": 12},
    "flats": {"start": 2, "stop": 20},
    "inner": {"start": 9, "stop": 13},
    "mid": {"start": "begin", "stop": "mid"},
    "offsets": {"start": "mid", "start_offset": -3, "stop": "end", "stop_offset": -4},
    "begin": {"start": "begin", "start_offset": 8},
}
_ROWS = {
    "mid": "mid",
    "part": {"start": 1, "stop": 3},
    "start": {"start": 1},
    "stop": {"stop": 2},
    "around": {"start": "mid", "start_offset": -1, "stop": "mid", "stop_offset": 1},
    "beyond": {"start": "begin", "start_offset": -5, "stop": "mid", "stop_offset": 99},
    "end": {"start": "mid", "stop": "end"},
}


def _previewed(**preview: Any) -> dict[str, Any]:
    return {**_AUTO, "preview": preview}


def _user_angles(n: int, start: float = 0, stop: float = 180, **more: Any) -> dict[str, Any]:
    angles = {"start_angle": start, "stop_angle": stop, "angles_total": n}
    return {**_PATHS, "rotation_angles": {"user_defined": angles}, **more}


def _sides(flats: Any, darks: Any) -> dict[str, Any]:
    return {**_PATHS, "flats": flats, "darks": darks}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of a case -> the scan, and the parameters of its loader."""
    no_key = {name: value for name, value in _PATHS.items() if name != "image_key_path"}
    flats = {"file": "sides.h5", "data_path": "flats"}
    darks = {"file": "sides.h5", "data_path": "darks"}
    keyed = {"file": "sides.h5", "data_path": "both", "image_key_path": "key"}
    by_name: dict[str, tuple[str, dict[str, Any]]] = {
        f"{scan} {name}": (f"{scan}.nxs", parameters)
        for scan in ("even", "odd", "floats", "no_flats", "no_darks", "bare", "linked")
        for name, parameters in (("auto", _AUTO), ("paths", _PATHS))
    }
    for (name, part), axis in itertools.product(_ROWS.items(), ("detector_y", "detector_x")):
        for scan in (
            ("even", "odd") if isinstance(part, str) or "mid" in part.values() else ("odd",)
        ):
            by_name[f"{scan} {axis} {name}"] = (f"{scan}.nxs", _previewed(**{axis: part}))
    for name, part in _ANGLES.items():
        by_name[f"angles {name}"] = ("even.nxs", _previewed(angles=part))
        both = _previewed(angles=part, detector_y="mid", detector_x={"start": 2, "stop": 5})
        by_name[f"angles {name} and detector"] = ("odd.nxs", both)
    small = {"detector_y": "mid", "detector_x": {"start": "mid"}}
    return by_name | {
        "mid of few": ("small.nxs", _previewed(**small)),
        "no key": ("even.nxs", no_key),
        "key null": ("even.nxs", {**_PATHS, "image_key_path": None}),
        "no key, preview": (
            "even.nxs",
            {**no_key, "preview": {"angles": {"start": 7, "stop": 26}}},
        ),
        "subset": ("two_scans.nxs", {**_AUTO, "continuous_scan_subset": {"start": 17, "stop": 32}}),
        "subset with flats": (
            "two_scans.nxs",
            {**_PATHS, "continuous_scan_subset": {"start": 0, "stop": 17}},
        ),
        "subset and preview": (
            "two_scans.nxs",
            {
                **_AUTO,
                "preview": {"angles": {"start": 1, "stop": 4}, "detector_x": "mid"},
                "continuous_scan_subset": {"start": 5, "stop": 12},
            },
        ),
        "user angles": ("even.nxs", _user_angles(19)),
        "user angles of the preview": (
            "even.nxs",
            _user_angles(5, preview={"angles": {"start": 0, "stop": 12}}),
        ),
        "user angles of all": ("bare.nxs", _user_angles(14)),
        "sides ignored": ("even.nxs", _sides("ignore", "ignore")),
        "flats ignored": ("even.nxs", _sides("ignore", None)),
        "darks ignored": ("floats.nxs", _sides(None, "ignore")),
        "sides of a file": ("even.nxs", _sides(flats, darks)),
        "flats of a file": ("even.nxs", _sides(flats, None)),
        "sides by a key": ("even.nxs", _sides(keyed, keyed)),
        "darks by a key, flats ignored": ("even.nxs", _sides("ignore", keyed)),
        "sides previewed": (
            "even.nxs",
            {**_sides(flats, keyed), "preview": {"detector_y": "mid", "detector_x": {"start": 4}}},
        ),
        "darks in the scan without a key": (
            "even.nxs",
            _sides(None, {"file": "input_data", "data_path": DATA}),
        ),
        "preview that cuts both ends": (
            "both_ends.nxs",
            _previewed(angles={"start": 6, "stop": 20}),
        ),
        "subset between flats": (
            "both_ends.nxs",
            {**_PATHS, "continuous_scan_subset": {"start": 0, "stop": 27}},
        ),
        "bytes": ("bytes.nxs", _AUTO),
        "whole numbers": ("whole.nxs", _AUTO),
        "doubles": ("doubles.nxs", _AUTO),
        "angles backwards": ("both_ends.nxs", _user_angles(17, 360, -0.5)),
        "invalid frames": ("invalid.nxs", _AUTO),
        "numbers with offsets": (
            "odd.nxs",
            _previewed(detector_y={"start": 2, "start_offset": 3, "stop": 9, "stop_offset": -1}),
        ),
        "offsets alone": (
            "even.nxs",
            _previewed(detector_x={"start_offset": 2, "stop_offset": -3}),
        ),
        "flats of floats, darks by a key, by full paths": (
            "even.nxs",
            _sides({"file": "sides.h5", "data_path": "/floats", "image_key_path": None}, keyed),
        ),
        "sides in the scan": (
            "even.nxs",
            _sides(
                {"file": "input_data", "data_path": DATA, "image_key_path": KEY},
                {"file": "input_data", "data_path": DATA, "image_key_path": KEY},
            ),
        ),
    }
