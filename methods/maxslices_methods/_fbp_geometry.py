"""Lengths, filter and angular weights of filtered back-projection, for all devices.

Conventions
-----------
Detector pixel ``j`` lies at ``j``, and the axis projects onto ``center``. Pixel (row i, column j)
of a slice of N x N lies at ``x = j - (N - 1) / 2``, ``y = (N - 1) / 2 - i`` (y points upwards). At
angle t it projects onto ``center + x cos t + y sin t``, as in `skimage.transform.iradon`.
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
"""An angular gap above this multiple of the typical gap is a missing wedge."""
SAME_GAPS = 0.1
"""Projections closer than this multiple of the typical gap have the same direction. Readings of an
encoder that returns to an angle differ by a few hundredths of a step."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sizes that depend on the shape and the parameters, but not on the axis or the block."""

    n_angles: int
    detector: int
    """Number of detector columns."""
    pad: int
    """Pixels by which each row is padded with its edge value, on either side."""
    size: int
    """Pixels along a side of a reconstructed slice."""
    radius: float
    """Radius of the mask in pixels, or infinity without a mask. Outside, a slice is zero."""
    reach: int
    """Largest distance in pixels between the axis and a reconstructed pixel."""

    @property
    def row_min(self) -> int:
        """Least FFT length at which the periodic filter does not wrap around.

        Rows count as zero beyond the detector. The filtered row is needed over the detector and
        over the whole reach of the slices, because its tails are not zero.
        """
        padded = self.detector + 2 * self.pad
        return padded + max(padded, 2 * self.reach)


def check_geometry(
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    **parameters: Any,
) -> None:
    """Check the parameters that determine sizes, and `center` if it is among `parameters`.

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
            "recon_mask_radius must be over 0 (a fraction of half the slice's side), or None for "
            f"no mask, not {recon_mask_radius}"
        )


def check_center(center: float | None) -> None:
    """Raise ValueError if the position of the axis is not finite."""
    if center is not None and not math.isfinite(center):
        raise ValueError(f"center must be a number of pixels, not {center}")


def axis_of(center: float | None, detector: int) -> float:
    """Position of the axis on the detector, in pixels. None: the middle of the detector.

    Raises
    ------
    ValueError
        If it is not finite.
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
    """Check the parameters that determine sizes, and compute these.

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
            f"fbp needs one angle for each of the {n_angles} projections, but angles has shape "
            f"{host.shape}"
        )
    if not np.isfinite(host).all():
        raise ValueError("fbp: some angles are not finite")
    return host


def angle_weights(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Angular weight of each projection in radians, with a sum of about pi.

    Directions t and t + pi are the same, so angles are taken modulo pi. The weight of a direction
    is half of the gap between its two neighbours, and projections in the same direction share it.
    Evenly spaced angles over 180 or 360 degrees therefore have equal weights in any order, and the
    first and last projection of a scan from 0 to 180 degrees inclusive share one weight. A gap of
    more than `WEDGE_GAPS` typical gaps is a missing wedge and counts as a typical gap. The typical
    gap is computed without the largest one.
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
    """Cutoff as a fraction of the highest frequency. For "sinc", the width of the window."""


WINDOWS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "ram-lak": lambda f: 1.0,
    "shepp-logan": np.sinc,
    "cosine": lambda f: np.cos(np.pi * f),
    "hamming": lambda f: 0.54 + 0.46 * np.cos(2 * np.pi * f),
    "hann": lambda f: 0.5 + 0.5 * np.cos(2 * np.pi * f),
    "cosine2": lambda f: np.cos(np.pi * f) ** 2,
    "parzen": lambda f: (1 - 2 * f) ** 3,
}
"""Windows as functions of the frequency in cycles per pixel, from 0 to 0.5."""
Interpolation = Literal["linear", "sinc"]
"""Interpolation of rows between detector pixels."""
Filter = Literal["ram-lak", "shepp-logan", "cosine", "hamming", "hann"]
"""Windows of `fbp`. The others are for methods under httomolibgpu's names."""


def linear_response(omega: NDArray[Any]) -> NDArray[np.float64]:
    """Response of linear interpolation between pixels, at frequencies in radians per pixel.

    If white noise is interpolated linearly at positions spread evenly between two samples, its
    power spectrum, with all aliases summed, is the square of this response. Rows multiplied by the
    response have this noise after any interpolation. Dividing by it compensates linear
    interpolation.
    """
    response: NDArray[np.float64] = np.sqrt((2 + np.cos(omega)) / 3)
    return response


SINC = "sinc"
"""Name of the window ``sinc(cutoff * f)``, with `RowWindow.cutoff` as its width."""


def row_filter(length: int, window: RowWindow) -> NDArray[np.float64]:
    """Response of the ramp filter with its window, at the frequencies of a real FFT of `length`.

    The ramp is the Fourier transform of the band-limited kernel sampled in space (Kak and Slaney,
    chapter 3.3.3), which preserves the mean of a slice. The windows are those of scikit-image.
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
