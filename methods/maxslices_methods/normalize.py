"""Normalisation of raw projections: flat field, dark field and logarithm."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from . import _normalize_cuda
from .namespaces import array_namespace, on_gpu

logger = logging.getLogger(__name__)
LEAST_SIGNAL = 1e-6
"""A pixel is dead if its flat field does not exceed its dark field by this much."""

LEAST_TRANSMISSION = 1e-6
"""Transmission that replaces values without a logarithm: one photon in a million."""

COLUMN_PARTS = 4
"""Number of parts of the columns in which flats are interpolated. With so many, this takes at most
as much memory as their mean."""

BROADCAST_BYTES = 2**15
"""NumPy broadcasts a frame through a buffer of 8192 float32 if the frame has less than half of its
bytes, or less than all of them before NumPy 2.3."""


@from_ledger
def _correction_memory(
    m: Ledger, shape: tuple[int, ...], dtype: np.dtype[Any], slice_dim: int, clipping_warning: bool
) -> None:
    m.alloc(shape, dtype)
    dark = m.alloc(shape[1:], "float32")
    signal = m.alloc(shape[1:], "float32")
    m.alloc(shape, "float32")  # the result, after masks of dead pixels are freed
    # A block of sinograms is counted as a single one, because more sinograms never need less.
    n_rows = shape[1] if slice_dim == 0 else 1
    if m.device == "cpu" and n_rows * shape[2] <= BROADCAST_BYTES // 4:
        m.alloc_bytes(BROADCAST_BYTES)
    if clipping_warning:
        m.free(m.alloc(shape[1:], "bool"))
    m.free(dark, signal)


@method(
    "all",
    calc_max_slices=_correction_memory,
    output_dtype="float32",
    takes="counts",
    gives="transmission",
)
def dark_flat_field_correction(
    data: Any,
    flats: Any,
    darks: Any = None,
    flats_multiplier: float = 1.0,
    darks_multiplier: float = 1.0,
    upper_bound: float | None = None,
    lower_bound: float | None = None,
    clipping_warning: bool = False,
    flat_weights: Any = None,
) -> Any:
    """Correct projections by flat and dark fields: (data - dark) / (flat - dark).

    If groups of flats were taken at several times and the beam changed by more than noise, the flat
    field of a projection is interpolated in time between the means of the two groups around it. See
    `maxslices.io.scans.frame_means` for the rule.

    Parameters
    ----------
    data : array
        Raw projections, shape (angles, detector_y, detector_x), any real dtype.
    flats : array
        Frames with beam and without sample, shape (frames, detector_y, detector_x), or their mean,
        shape (detector_y, detector_x).
    darks : array, optional
        Frames without beam, of the same shapes. None, or a stack of zero frames, means zero.
    flats_multiplier, darks_multiplier : float
        Factors for the mean flat and dark, for instance for other exposure times.
    upper_bound, lower_bound : float, optional
        Limits to which the result is clipped.
    clipping_warning : bool
        Whether to log a warning if half of a block's values or more are clipped.
    flat_weights : (array, array), optional
        Weights of the flats as the product of two matrices, (projections, groups) and (groups,
        flats). The runner supplies them if the beam changed. By default, or if their shapes do not
        match projections and flats, all flats have equal weights.

    Returns
    -------
    array
        Transmission, float32, of the shape of the data. It is finite for finite data: a dark value
        that is not finite counts as 0, and the denominator of a dead pixel is 1 (its flat is not
        finite, or does not exceed its dark by 1e-6).

    Raises
    ------
    ValueError
        If flats are missing, or flats or darks do not have the shape of the frames.

    Notes
    -----
    Follows the method of this name in httomolibgpu, except for dead pixels.
    """
    xp = array_namespace(data)
    shape = len(data), 0 if flats is None or flats.ndim == 2 else len(flats)
    if flat_weights is not None and (len(flat_weights[0]), flat_weights[1].shape[1]) == shape:
        out = _corrected_in_time(
            data, flats, darks, flat_weights, flats_multiplier, darks_multiplier
        )
    else:
        dark = dark_frame(xp, darks, data.shape[1:], darks_multiplier)
        signal = mean_frame(xp, "flats", flats, data.shape[1:])
        if signal is None:
            raise ValueError("dark_flat_field_correction needs flats: at least one frame")
        if flats_multiplier != 1:
            signal *= flats_multiplier
        if dark is not None:
            signal -= dark
        set_dead(xp, signal)
        if on_gpu(data):
            out = _normalize_cuda.correction(data, 0 if dark is None else dark, signal)
        else:
            out = data.astype(xp.float32)
            if dark is not None:
                out -= dark
            out /= signal
    if lower_bound is not None:
        xp.maximum(out, lower_bound, out=out)
    if upper_bound is not None:
        xp.minimum(out, upper_bound, out=out)
    if clipping_warning:
        _warn_of_clipping(xp, out, lower_bound, upper_bound)
    return out


def _corrected_in_time(
    data: Any,
    flats: Any,
    darks: Any,
    flat_weights: tuple[Any, Any],
    flats_multiplier: float,
    darks_multiplier: float,
) -> Any:
    """Correct projections by weighted flats, in parts of the columns.

    In a part, the dark, two groups, the flat of a projection and its mask need less memory than the
    dark and the mean flat of whole frames.
    """
    xp = array_namespace(data)
    in_time, members = (np.asarray(each) for each in flat_weights)
    out = xp.empty(data.shape, dtype=xp.float32)
    step = -(-data.shape[2] // COLUMN_PARTS)
    for first in range(0, data.shape[2], step):
        part = np.s_[..., first : first + step]
        dark = None if darks is None else darks[part]
        dark = dark_frame(xp, dark, (data.shape[1], out[part].shape[2]), darks_multiplier)
        weights = in_time, members * flats_multiplier
        _correct_in_time(xp, data[part], flats[part], dark, weights, out[part])
        del dark
    return out


def _correct_in_time(
    xp: Any, data: Any, flats: Any, dark: Any, flat_weights: tuple[Any, Any], out: Any
) -> None:
    """Correct projections by weighted flats, and write them to `out`."""
    in_time, members = flat_weights
    flat = xp.empty(out.shape[1:], dtype=xp.float32)
    means: dict[int, Any] = {}
    for signal, projection, row in zip(out, data, in_time, strict=True):
        used = np.flatnonzero(row).tolist()
        for group in [each for each in means if each not in used]:
            del means[group]
        for group in used:
            if group not in means:
                means[group] = _group_mean(xp, flats, members[group], dark, flat)
        # The sum is computed in the result's memory, and its terms in the flat's.
        signal[...] = 0
        for group in used:
            xp.multiply(means[group], np.float32(row[group]), out=flat)
            signal += flat
        set_dead(xp, signal)
        flat[...] = projection
        if dark is not None:
            flat -= dark
        xp.divide(flat, signal, out=signal)


def _group_mean(xp: Any, flats: Any, weights: Any, dark: Any, term: Any) -> Any:
    """Weighted sum of flats minus the dark, with `term` as scratch of the size of a frame."""
    mean = xp.zeros(term.shape, dtype=xp.float32)
    for index in np.flatnonzero(weights).tolist():
        xp.multiply(flats[index], np.float32(weights[index]), out=term)
        mean += term
    if dark is not None:
        xp.multiply(dark, np.float32(weights.sum()), out=term)
        mean -= term
    return mean


def dark_frame(xp: Any, darks: Any, frame_shape: tuple[int, ...], multiplier: float) -> Any:
    """Mean dark field, float32, with 0 for values that are not finite, or None without darks."""
    dark = mean_frame(xp, "darks", darks, frame_shape)
    if dark is not None:
        if multiplier != 1:
            dark *= multiplier
        xp.copyto(dark, 0, where=~xp.isfinite(dark))
    return dark


def set_dead(xp: Any, signal: Any) -> None:
    """Set the signal of dead pixels to 1."""
    xp.copyto(signal, 1, where=~((signal >= LEAST_SIGNAL) & xp.isfinite(signal)))


def _warn_of_clipping(xp: Any, out: Any, *bounds: float | None) -> None:
    """Log a warning for each bound to which half of the values or more are clipped."""
    for bound in bounds:
        if bound is None:
            continue
        value = xp.float32(bound)
        share = sum(int(xp.count_nonzero(frame == value)) for frame in out) / out.size
        if share >= 0.5:
            logger.warning(
                "dark_flat_field_correction: %.0f %% of the values are set to the bound %g",
                100 * share,
                bound,
            )


def mean_frame(xp: Any, name: str, frames: Any, frame_shape: tuple[int, ...]) -> Any:
    """Mean frame as a new float32 array, or None without frames."""
    if frames is None or frames.shape[0] == 0:
        return None
    if frames.shape[-2:] != frame_shape or frames.ndim not in (2, 3):
        raise ValueError(
            f"{name} of shape {frames.shape} do not fit frames of {frame_shape}: give "
            "(frames, detector_y, detector_x), or their mean"
        )
    if frames.ndim == 2:
        return frames.astype(xp.float32)
    if on_gpu(frames):
        return _normalize_cuda.mean_frame(frames)
    return xp.mean(frames, axis=0, dtype=xp.float32)


def float32_result_max_slices(
    slice_dim: int,
    other_dims: tuple[int, int],
    dtype: np.dtype[Any],
    available_memory: int,
    device: str = "cuda",
) -> tuple[int, np.dtype[np.float32]]:
    """Number of slices that fit, for a method with an input and a float32 result of its shape."""
    # CuPy's pool hands out multiples of 512 bytes: either array may take up to 511 more.
    rounding = 0 if device == "cpu" else 2 * 511
    per_slice = other_dims[0] * other_dims[1] * (dtype.itemsize + 4)
    return max(0, available_memory - rounding) // per_slice, np.dtype(np.float32)


@method(
    "all", calc_max_slices=float32_result_max_slices, takes="transmission", gives="line integrals"
)
def minus_log(data: Any) -> Any:
    """Compute line integrals of the attenuation: the negative logarithm of the transmission.

    Parameters
    ----------
    data : array
        Transmission, shape (angles, detector_y, detector_x), any real dtype.

    Returns
    -------
    array
        -log(data), float32, of the same shape, and finite. Transmissions below 1e-6, zero,
        negative values and NaN count as 1e-6 (result 13.8), and infinity as the largest float32
        (result -88.7).
    """
    if on_gpu(data):
        return _normalize_cuda.minus_log(data, LEAST_TRANSMISSION, float(np.finfo(np.float32).max))
    xp = array_namespace(data)
    # Cast first: NumPy casts within an operation through buffers of its own.
    out = data.astype(xp.float32)
    xp.fmax(out, LEAST_TRANSMISSION, out=out)
    xp.minimum(out, np.finfo(np.float32).max, out=out)
    xp.log(out, out=out)
    return xp.negative(out, out=out)
