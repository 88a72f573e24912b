"""Expected results of pipelines on a whole scan, in plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Whole:
    """A scan as one array, with its angles, flats and side results."""

    data: np.ndarray
    """Axes (angles, detector_y, detector_x)."""
    angles: np.ndarray | None = None
    """Radians."""
    flats: np.ndarray | None = None
    """Frames of the same part of the detector."""
    stored: np.ndarray | None = None
    """Index of each projection among the frames as they are stored; None if they are alone."""
    side_results: dict[str, float] = field(default_factory=dict)
    """Side results by their names."""


def expected(whole: Whole, steps: list[dict[str, Any]], slice_dims: list[int]) -> list[np.ndarray]:
    """Output of each step in turn."""
    outputs = []
    for step, slice_dim in zip(steps, slice_dims, strict=True):
        apply = globals()[f"_{step['method']}"]
        parameters = dict(step.get("parameters", {}))
        if "centre" in parameters:
            parameters["centre"] = whole.side_results[
                parameters["centre"].strip("${} ").rpartition(".")[2]
            ]
        if step["method"] in ("neighbours", "reaching"):
            parameters["axis"] = slice_dim
        whole.data = apply(whole, **parameters)
        outputs.append(whole.data)
    return outputs


def _to_float(whole: Whole, factor: float = 1.0) -> np.ndarray:
    return (whole.data * np.float32(factor)).astype(np.float32)


def _negate(whole: Whole) -> np.ndarray:
    return -whole.data


def _work(whole: Whole, copies: int = 2) -> np.ndarray:
    total = np.zeros_like(whole.data)
    for _ in range(copies):
        total = total + whole.data
    return total


def _sum_around(data: np.ndarray, axis: int, before: int, after: int) -> np.ndarray:
    width = [(0, 0)] * 3
    width[axis] = (before, after)
    padded = np.pad(data, width, mode="edge")
    n = data.shape[axis]
    total = data.copy()
    for shift in (*range(before), *range(before + 1, before + after + 1)):
        total = total + np.take(padded, range(shift, shift + n), axis)
    return total


def _neighbours(whole: Whole, axis: int) -> np.ndarray:
    return _sum_around(whole.data, axis, 2, 1)


def _reaching(whole: Whole, axis: int, reach: int = 3) -> np.ndarray:
    return _sum_around(whole.data, axis, reach, reach)


def _crop(whole: Whole, keep: int) -> np.ndarray:
    return whole.data[:, :, :keep]


_left = _crop


def _same(whole: Whole) -> np.ndarray:
    return whole.data


def _triple_in_place(whole: Whole) -> np.ndarray:
    return whole.data * whole.data.dtype.type(3)


def _flat_field(whole: Whole) -> np.ndarray:
    return whole.data.astype(np.float32) - whole.flats[0].astype(np.float32)


def _turn(whole: Whole) -> np.ndarray:
    return (whole.data + whole.angles[:, None, None]).astype(np.float32)


def _extremes(whole: Whole) -> np.ndarray:
    whole.side_results |= {"low": float(whole.data.min()), "high": float(whole.data.max())}
    return whole.data


def _find_middle(whole: Whole) -> np.ndarray:
    middle = whole.data[:, [whole.data.shape[1] // 2]]
    small = middle.size < 2**12
    whole.side_results["axis"] = float(
        middle.astype(np.float64).mean() if small else middle[0, 0, 0]
    )
    return whole.data


def _scaled_by(whole: Whole, centre: float) -> np.ndarray:
    return whole.data * whole.data.dtype.type(centre)
