"""Lengths, filter and angular weights of filtered back-projection, for all devices.

Conventions
-----------
Detector pixel ``j`` lies at ``j``; the axis projects onto ``center``. Pixel (row i, column
j) of a slice of N x N lies at ``x = j - (N - 1) / 2``, ``y = (N - 1) / 2 - i`` (y upwards),
and at angle t is seen at ``center + x cos t + y sin t``, as in `skimage.transform.iradon`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from maxslices.core.angles import typical_step

from .namespaces import on_gpu

WEDGE_GAPS = 3.0
"""An angular gap of more than this many typical gaps is a missing wedge, not a coarse scan."""
SAME_GAPS = 0.1
"""Projections closer than this many typical gaps are of one direction: an encoder's readings differ
by a few hundredths of a step when it comes back to an angle."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sizes that follow from shape and parameters alone, not from the axis or the block."""

    n_angles: int
    detector: int
    """Detector pixels."""
    pad: int
    """Pixels by which each row is continued with its edge value, on either side."""
    size: int
    """Pixels along a side of a reconstructed slice."""
    radius: float
    """Distance in pixels from the axis beyond which a slice is zero; inf without a mask."""
    reach: int
    """Largest distance in pixels between the axis and a pixel that is reconstructed."""

    @property
    def row_min(self) -> int:
        """Length at which the filter, periodic in it, does not reach around.

        Rows are as if zero beyond the detector; the filtered row is needed over the detector
        and over all that slices reach, because the tails of a filtered row are not zero.
        """
        padded = self.detector + 2 * self.pad
        return padded + max(padded, 2 * self.reach)


def check_geometry(
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    **parameters: Any,
) -> None:
    """Check the parameters that fix sizes, and the axis among the others, which may be unknown yet.

    Raises
    ------
    ValueError
        If one of them is out of range.
    """
    check_center(parameters.get("center"))
    if recon_size is not None and recon_size < 1:
        raise ValueError(f"recon_size must be at least 1 pixel, not {recon_size}")
    if detector_pad < 0:
        raise ValueError(
            f"detector_pad must be True, False or at least 0 pixels, not {detector_pad}"
        )
    if recon_mask_radius is not None and not recon_mask_radius > 0:
        raise ValueError(
            f"recon_mask_radius must be over 0 (a fraction of half the slice's side), or None for "
            f"no mask; it is {recon_mask_radius}"
        )


def check_center(center: float | None) -> None:
    """Check where the axis projects; ValueError if it is no number."""
    if center is not None and not math.isfinite(center):
        raise ValueError(f"center must be a number of pixels, not {center}")


def axis_of(center: float | None, detector: int) -> float:
    """Where the axis projects, in pixels; the middle of the detector if it is not given.

    Raises
    ------
    ValueError
        If it is no number.
    """
    check_center(center)
    if center is None:
        return (detector - 1) / 2
    if not -0.5 <= center <= detector - 0.5:
        warnings.warn(
            f"the axis at center {center:g} is not on the detector's {detector} columns: it is "
            "counted from the first column that is read",
            stacklevel=2,
        )
    return float(center)


def lengths(
    shape: tuple[int, ...],
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
) -> Lengths:
    """Check the parameters that fix sizes.

    Raises
    ------
    ValueError
        If one of them is out of range.
    """
    check_geometry(detector_pad, recon_size, recon_mask_radius)
    n_angles, _, detector = shape
    size = detector if recon_size is None else int(recon_size)
    pad = detector // 2 if detector_pad is True else int(detector_pad)
    corner = (size - 1) / math.sqrt(2)
    radius = math.inf if recon_mask_radius is None else recon_mask_radius * size / 2
    return Lengths(n_angles, detector, pad, size, radius, math.ceil(min(corner, radius)))


def host_angles(angles: Any, n_angles: int) -> NDArray[np.float64]:
    """Copy the angles, in radians, to the host and check them.

    Raises
    ------
    ValueError
        If there is not one finite angle for each projection.
    """
    host = np.asarray(angles.get() if on_gpu(angles) else angles, dtype=np.float64)
    if host.shape != (n_angles,):
        raise ValueError(
            f"fbp needs one angle for each of the {n_angles} projections; angles has shape "
            f"{host.shape}"
        )
    if not np.isfinite(host).all():
        raise ValueError("fbp: some angles are not finite")
    return host


def angle_weights(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Angular weight of each projection in radians; the weights sum to about pi.

    Directions t and t + pi are the same, so all are taken modulo pi; each direction gets
    half of the gap to its two neighbours there, and projections in one direction share that. Thus
    evenly spaced angles over 180 or 360 degrees get the same weight each, in any order, and the
    two ends of a scan from 0 to 180 degrees inclusive share one. A gap over `WEDGE_GAPS` times the
    typical one is a missing wedge and counts as a typical one, which is that without the largest.
    """
    n = len(angles)
    folded = np.mod(angles, np.pi)
    order = np.argsort(folded, kind="stable")
    gaps = np.diff(folded[order], append=folded[order[0]] + np.pi)
    by_size = np.sort(gaps)[:-1]
    if not by_size.any():  # one direction
        return np.full(n, np.pi / n)
    typical = typical_step(by_size)
    gaps[gaps > WEDGE_GAPS * typical] = typical
    ends = np.cumsum(gaps > SAME_GAPS * typical)
    direction = np.roll(ends, 1) % ends[-1]
    total = np.bincount(direction, (gaps + np.roll(gaps, 1)) / 2)
    weights = np.empty(n)
    weights[order] = (total / np.bincount(direction))[direction]
    return weights


@dataclass(frozen=True, slots=True)
class RowWindow:
    """Window of the ramp filter."""

    name: str
    """One of `WINDOWS`."""
    cutoff: float = 1.0
    """Fraction of the highest frequency above which nothing is left; of "sinc" its width."""


WINDOWS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "ram-lak": lambda f: 1.0,
    "shepp-logan": np.sinc,
    "cosine": lambda f: np.cos(np.pi * f),
    "hamming": lambda f: 0.54 + 0.46 * np.cos(2 * np.pi * f),
    "hann": lambda f: 0.5 + 0.5 * np.cos(2 * np.pi * f),
    "cosine2": lambda f: np.cos(np.pi * f) ** 2,
    "parzen": lambda f: (1 - 2 * f) ** 3,
}
"""Windows as functions of the frequency in cycles a pixel, up to a half."""
Interpolation = Literal["linear", "sinc"]
"""How rows are interpolated between the pixels of the detector."""
Filter = Literal["ram-lak", "shepp-logan", "cosine", "hamming", "hann"]
"""Those that `fbp` takes; the others are httomolibgpu's."""


def linear_response(omega: NDArray[Any]) -> NDArray[np.float64]:
    """Response of linear interpolation between pixels, at frequencies in radians a pixel.

    White noise that is interpolated linearly, at places spread evenly between two samples, has this
    response's square as its spectrum, all aliases summed up. Rows with it have that noise however
    they are interpolated, and rows that are divided by it have their own again.
    """
    response: NDArray[np.float64] = np.sqrt((2 + np.cos(omega)) / 3)
    return response


SINC = "sinc"
"""A window with a width: the sinc of the frequency times `RowWindow.cutoff`."""


def row_filter(length: int, window: RowWindow) -> NDArray[np.float64]:
    """Response of the filter at the frequencies of a real FFT of `length` points.

    The ramp is the transform of the band-limited kernel sampled in space (Kak and Slaney,
    chapter 3.3.3), so that the mean of a slice is right; windows as in scikit-image.
    """
    distance = np.arange(length)
    distance = np.minimum(distance, length - distance)
    kernel = np.zeros(length)
    kernel[0] = 0.25
    odd = distance % 2 == 1
    kernel[odd] = -1 / (np.pi * distance[odd]) ** 2
    response = scipy.fft.rfft(kernel).real
    frequency = np.arange(length // 2 + 1) / length
    if window.name == SINC:
        response *= np.sinc(window.cutoff * frequency)
    else:
        response *= WINDOWS[window.name](frequency)
        response[frequency > window.cutoff / 2] = 0
    filtered: NDArray[np.float64] = response
    return filtered
