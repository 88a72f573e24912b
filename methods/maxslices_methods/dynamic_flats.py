"""Dynamic flat-field correction, for a beam that changes from one projection to the next."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from .namespaces import array_namespace, to_host
from .normalize import LEAST_TRANSMISSION, dark_frame, mean_frame, set_dead

COARSE_SIDE = 64
"""Most bins along a side of the frames that weights are found on.

In 38 simulated scans (frames of 512 x 384 and 2048 x 1536, beams with waves of 5 to 700 pixels,
1000 and 20,000 photons, discs, grains and layers, 2026-11-28), the residual beam with 64 bins was
within 4 % of the least. With 256 bins it was up to 2.5 times the least, where photon noise
dominates the total variation. With 16 bins it was up to 2.7 times the least, for fine waves and
behind grains.
"""
CHUNK_NUMBERS = 2**14
"""Numbers of the flats that are multiplied together: 128 KiB."""
OBJECT_BYTES = 8 * 1024
"""Bytes of array objects and of the matrices of as many rows as there are flats."""
NOISE_RATIO = 2.0
"""Least variance of a component relative to the median variance, which noise alone determines. With
1.2 to 4 the corrected projections of 18 of those scans were the same. With 10, components of 3 % of
the beam were lost at 1000 photons."""
ITERATIONS = 15
"""Steps of reweighted least squares, each with weights 1 / |residual|. Corrected projections were
within 0.001 of those after 200 steps, and after 5 steps within 0.01 (two modes of the beam,
2026-11-28)."""
LEAST_RESIDUAL = 1e-4
"""Least residual in a weight, as a change of the logarithm of the transmission. From 1e-4 to 1e-2
the residual beam in 18 of those scans varied by 4 %. With 1e-6 it was up to 15 % larger."""


def _bins(frame_shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Sides of a bin in pixels, at least two, and the numbers of bins."""
    side = max(2, -(-max(frame_shape) // COARSE_SIDE))
    rows, columns = frame_shape
    sides = min(side, rows), min(side, columns)
    return sides, (rows // sides[0], columns // sides[1])


@from_ledger
def _needs(m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], components: int) -> None:
    frame = shape[1:]
    bins = _bins(frame)[1]
    m.alloc(shape, dtype)
    for _ in range(3 + components):  # dark, mean flat, a term, components
        m.alloc(frame, "float32")
    m.alloc_bytes(OBJECT_BYTES)
    m.free(m.alloc_bytes(3 * 8 * min(CHUNK_NUMBERS, frame[0] * frame[1])))
    m.alloc(shape, "float32")
    m.alloc(frame, "float32")  # a component with its weight, or masks of dead pixels
    # Coarse: mean, flat, projection, its logarithm. Then two differences each of the components and
    # the projection, its residual, weights, and products of these.
    m.alloc((2 * components + 14, *bins), "float32")


def _check(components: int) -> None:
    if components < 1:
        raise ValueError(f"components must be at least 1, not {components}")


@method(
    "projection",
    calc_max_slices=_needs,
    output_dtype="float32",
    check_values=_check,
    takes="counts",
    gives="transmission",
)
def dynamic_flat_field_correction(
    data: Any, flats: Any, darks: Any = None, components: int = 3
) -> Any:
    """Correct projections for a beam that changes from one projection to the next.

    The flat field of each projection is the mean flat plus a weighted sum of the principal
    components of the flats. The weights minimize the total variation of the corrected projection
    (Van Nieuwenhove et al. 2015).

    Parameters
    ----------
    data : array
        Raw projections, shape (angles, detector_y, detector_x), any real dtype.
    flats : array
        Frames with beam and without sample, shape (frames, detector_y, detector_x). Use at least
        three, better 20 or more, taken while the beam changes as during the scan.
    darks : array, optional
        Frames without beam, or their mean. None means zero.
    components : int
        Largest number of components. Components below the noise are omitted.

    Returns
    -------
    array
        Transmission, float32, of the shape of the data. The mean of each projection is the same as
        from `dark_flat_field_correction`, because total variation does not determine it.

    Raises
    ------
    ValueError
        If there are fewer than three flats, or they do not have the shape of the frames.

    Notes
    -----
    Unlike in the paper, the total variation of the logarithm is minimized, which is linear in the
    weights. It is computed on a grid of at most 64 bins a side, and minimized by reweighted least
    squares. Components are not filtered.

    References
    ----------
    V. Van Nieuwenhove, J. De Beenhouwer, F. De Carlo, L. Mancini, F. Marone, J. Sijbers, Opt.
    Express 23, 27975 (2015).
    """
    _check(components)
    if flats is None or flats.ndim != 3 or len(flats) < 3:
        raise ValueError("dynamic_flat_field_correction needs flats: three frames at least")
    xp = array_namespace(data)
    dark = dark_frame(xp, darks, data.shape[1:], 1.0)
    mean = mean_frame(xp, "flats", flats, data.shape[1:])
    if dark is not None:
        mean -= dark
    set_dead(xp, mean)
    term = xp.empty(mean.shape, dtype=xp.float32)
    weights = _component_weights(xp, flats)[:components]
    parts = xp.zeros((len(weights), *mean.shape), dtype=xp.float32)
    for part, row in zip(parts, weights, strict=True):
        for flat, weight in zip(flats, row, strict=True):
            xp.multiply(flat, np.float32(weight), out=term)
            part += term
    coarse_mean = _binned(xp, mean)
    changes = [_gradient(xp, _binned(xp, part) / coarse_mean) for part in parts]
    out = xp.empty(data.shape, dtype=xp.float32)
    for corrected, projection in zip(out, data, strict=True):
        corrected[...] = projection
        if dark is not None:
            corrected -= dark
        term[...] = mean
        if len(parts):
            coarse = _binned(xp, corrected)
            logarithm = xp.log(xp.maximum(coarse / coarse_mean, np.float32(LEAST_TRANSMISSION)))
            fitted = _least_variation(xp, changes, _gradient(xp, logarithm))
            flat = coarse_mean.copy()
            for part, weight in zip(parts, fitted, strict=True):
                flat += _binned(xp, part) * np.float32(weight)
                term += part * np.float32(weight)
            before = float(xp.mean(coarse / coarse_mean, dtype=xp.float64))
            after = float(xp.mean(coarse / flat, dtype=xp.float64))
            if after > 0:
                term *= np.float32(after / before if before > 0 else 1.0)
            set_dead(xp, term)
        corrected /= term
    return out


def _component_weights(xp: Any, flats: Any) -> NDArray[np.float64]:
    """Weights of the flats in each principal component above noise, (components, flats)."""
    n = len(flats)
    flat = flats.reshape(n, -1)
    step = max(1, min(CHUNK_NUMBERS, flat.shape[1]) // n)  # at most as many numbers as in a frame
    products = xp.zeros((n, n), dtype=xp.float64)
    for start in range(0, flat.shape[1], step):
        values = flat[:, start : start + step].astype(xp.float64)
        values -= xp.mean(values, axis=0)
        products += values @ values.T
    variances, vectors = np.linalg.eigh(to_host(products))
    variances, vectors = variances[::-1], vectors[:, ::-1]
    noise = float(np.median(variances[: n - 1]))
    weights: NDArray[np.float64] = vectors[:, variances > NOISE_RATIO * noise].T
    return weights


def _binned(xp: Any, frame: Any) -> Any:
    """Mean of a frame in each bin."""
    (high, wide), (rows, columns) = _bins(frame.shape)
    whole = frame[: rows * high, : columns * wide].reshape(rows, high, columns, wide)
    return xp.mean(xp.mean(whole, axis=3), axis=1)


def _gradient(xp: Any, frame: Any) -> Any:
    """Differences along both axes, in one row."""
    down, right = frame[1:] - frame[:-1], frame[:, 1:] - frame[:, :-1]
    return xp.concatenate([down.reshape(-1), right.reshape(-1)])


def _least_variation(xp: Any, changes: list[Any], gradient: Any) -> NDArray[np.float64]:
    """Weights of the changes that minimize the sum of absolute differences."""
    n = len(changes)
    weights = np.zeros(n)
    residual = gradient.copy()
    for _ in range(ITERATIONS):
        trust = 1 / xp.maximum(xp.abs(residual), np.float32(LEAST_RESIDUAL))
        matrix, right = np.empty((n, n)), np.empty(n)
        for i in range(n):
            weighted = changes[i] * trust
            right[i] = float(xp.sum(weighted * gradient, dtype=xp.float64))
            for j in range(i, n):
                matrix[i, j] = float(xp.sum(weighted * changes[j], dtype=xp.float64))
                matrix[j, i] = matrix[i, j]
        weights[:] = np.linalg.lstsq(matrix, right, rcond=1e-10)[0]
        residual[...] = gradient
        for change, weight in zip(changes, weights, strict=True):
            residual -= change * np.float32(weight)
    return weights
