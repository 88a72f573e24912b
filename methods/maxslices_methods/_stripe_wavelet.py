"""Wavelet and Fourier filter for stripes, as two matrix products.

The filter of Münch et al. transforms a sinogram into wavelet bands, and removes the low frequencies
along the angles from each band of vertical details. The removed part is linear in the sinogram and
separable into angles and detector. Level j applies the low-pass filters of both directions j - 1
times, then the low-pass along the angles and the high-pass along the detector. Bands that are
high-pass along the angles are unchanged and therefore not computed.

Along the angles, the low-pass filters and the few lowest frequencies of all levels form one small
matrix, `Tables.gather`. Their inverse is `Tables.spread`. Between the two products a sinogram has
about 200 rows, so the transforms along the detector are cheap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices import Ledger

from .namespaces import array_namespace

NEGLIGIBLE = 5.8
"""Standard deviations beyond which a Gaussian is below the resolution of float32:
exp(-5.8^2 / 2) = 5e-8."""

WIDTHS = 64
"""Width of the detector over that of the widest default coefficients. Wider coefficients contain
the object: slices without stripes lose 2 to 3 dB per further level (discs, 256 and 512 columns,
2026-11-28)."""

CHUNK_NUMBERS = {"cuda": 2**26, "cpu": 1}
"""Numbers in the arrays of the sinograms that are filtered together: 256 MiB on a GPU. On a CPU it
is one sinogram, because the last bits of a result would depend on its position in a chunk."""

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tables:
    """Matrices and filters of the stripe filter, on the host or on a GPU."""

    gather: Any
    """(rows, angles) float32: low frequencies of the low-pass bands of all levels."""
    spread: Any
    """(angles, rows) float32: the inverse of `gather`, for the removed part."""
    counts: tuple[int, ...]
    """Rows of each level, finest first."""
    reflected: tuple[Any, ...]
    """For each level (coefficients, taps): indices that the analysis filter reads."""
    windows: tuple[Any, ...]
    """For each level (pairs of samples, taps / 2): indices that the synthesis filter reads."""
    analysis: tuple[Any, Any]
    """Low-pass and high-pass (taps, 1) float32, in the order of `reflected`."""
    synthesis: tuple[Any, Any]
    """Low-pass and high-pass (taps / 2, 2) float32: even and odd samples."""
    widths: tuple[int, ...]
    """Length along the detector, before the first level and after each."""

    def on(self, xp: Any) -> Tables:
        """Copy the tables to arrays of `xp`."""
        return Tables(
            xp.asarray(self.gather),
            xp.asarray(self.spread),
            self.counts,
            tuple(map(xp.asarray, self.reflected)),
            tuple(map(xp.asarray, self.windows)),
            (xp.asarray(self.analysis[0]), xp.asarray(self.analysis[1])),
            (xp.asarray(self.synthesis[0]), xp.asarray(self.synthesis[1])),
            self.widths,
        )


def filter_length(wname: str) -> int:
    """Number of taps of a wavelet.

    Raises
    ------
    ValueError
        If PyWavelets has no discrete wavelet of this name.
    """
    return int(_wavelet(wname).dec_len)


def _wavelet(wname: str) -> Any:
    import pywt  # here, as importing it takes 17 ms also where no step has wavelets

    if wname not in pywt.wavelist(kind="discrete"):
        raise ValueError(
            "wname must be a discrete wavelet of PyWavelets, such as 'haar', 'db5', 'sym16' or "
            f"'bior4.4', not {wname!r}"
        )
    return pywt.Wavelet(wname)


def level_count(n_angles: int, width: int, level: int | None) -> int:
    """Number of levels: `level`, or by default as many as `WIDTHS` allows for this width."""
    most = max(1, math.ceil(math.log2(max(n_angles, width))))
    if level is None:
        return max(1, (width // WIDTHS).bit_length() - 1)
    if not 1 <= level <= most:
        raise ValueError(
            f"level must be 1 to {most} for sinograms of {n_angles} x {width}, or None for as many "
            f"as fit, not {level}"
        )
    return level


def lengths(size: int, taps: int, levels: int) -> tuple[int, ...]:
    """Length of a signal and of its coefficients at each level."""
    sizes = [size]
    for _ in range(levels):
        sizes.append((sizes[-1] + taps - 1) // 2)
    return tuple(sizes)


def row_counts(angle_lengths: tuple[int, ...], sigma: float) -> tuple[int, ...]:
    """Number of real Fourier components along the angles that each level damps."""
    reach = math.ceil(NEGLIGIBLE * sigma)
    return tuple(min(n, 2 * min(n // 2, reach) + 1) for n in angle_lengths[1:])


@lru_cache(maxsize=64)
def chunk_slices(
    device: str, n_angles: int, width: int, sigma: float, wname: str, levels: int, pad: int
) -> int:
    """Number of sinograms that are filtered together, at least one."""
    taps = filter_length(wname)
    n_rows = sum(row_counts(lengths(n_angles + 2 * pad, taps, levels), sigma))
    numbers = n_angles * width + n_rows * (width + lengths(width, taps, 1)[1] * taps)
    return max(1, CHUNK_NUMBERS[device] // numbers)


def make_tables(
    n_angles: int, width: int, sigma: float, wname: str, levels: int, pad: int
) -> Tables:
    """Compute the tables for sinograms of (n_angles, width), on the host.

    The sinogram is padded by `pad` mirrored angles at both ends. The matrices are those of the
    padded sinogram, with the columns of the same angle summed and the rows of the padding removed.
    """
    wavelet = _wavelet(wname)
    taps = int(wavelet.dec_len)
    low, high = np.array(wavelet.dec_lo), np.array(wavelet.dec_hi)
    back_low, back_high = np.array(wavelet.rec_lo), np.array(wavelet.rec_hi)
    angles, widths = lengths(n_angles + 2 * pad, taps, levels), lengths(width, taps, levels)
    counts = row_counts(angles, sigma)
    steps = list(zip(angles[-2::-1], angles[:0:-1], counts[::-1], strict=True))
    columns: Float64 = np.empty((angles[-1], 0))
    for size, length, count in steps:
        columns = np.hstack([_low_frequencies(length, count, sigma)[0], columns])
        columns = _adjoint_of_analysis(columns, low, size)
    if pad:
        columns = _folded(columns, pad)
    gather = np.ascontiguousarray(columns.T, dtype=np.float32)
    columns = np.empty((angles[-1], 0))
    for size, length, count in steps:
        waves, weights = _low_frequencies(length, count, sigma)
        waves *= weights
        columns = np.hstack([waves, columns])
        del waves
        columns = _synthesis(columns, back_low, size)
    spread = columns[pad : pad + n_angles].astype(np.float32)
    return Tables(
        gather,
        spread,
        counts,
        tuple(_reflected(n, taps) for n in widths[:-1]),
        tuple(np.arange(n - taps // 2 + 1)[:, None] + np.arange(taps // 2) for n in widths[1:]),
        (low.astype(np.float32)[:, None], high.astype(np.float32)[:, None]),
        (_even_and_odd(back_low), _even_and_odd(back_high)),
        widths,
    )


cached_tables = lru_cache(maxsize=4)(make_tables)
"""`make_tables` with a cache. On a GPU, filtering a block can be faster than computing tables."""


def _low_frequencies(length: int, count: int, sigma: float) -> tuple[Float64, Float64]:
    """Cosines and sines as columns, and their weights in a Gaussian low-pass."""
    frequency = (np.arange(count) + 1) // 2
    phase = 2 * np.pi / length * np.outer(np.arange(length), frequency)
    is_cosine = np.arange(count) % 2 == 1
    is_cosine[0] = True
    waves = np.where(is_cosine, np.cos(phase), np.sin(phase))
    once = (frequency == 0) | (2 * frequency == length)
    weights = np.where(once, 1.0, 2.0) / length * np.exp(-(frequency**2) / (2 * sigma**2))
    return waves, weights


def _reflected(size: int, taps: int) -> NDArray[np.int64]:
    """Indices of the samples that each coefficient of `size` samples reads, for each tap.

    The signal is mirrored at its ends, and the last sample is repeated.
    """
    place = 2 * np.arange((size + taps - 1) // 2)[:, None] + 1 - np.arange(taps)
    place %= 2 * size
    return np.where(place < size, place, 2 * size - 1 - place)


def _adjoint_of_analysis(columns: Float64, low: Float64, size: int) -> Float64:
    """Apply the transpose of the low-pass analysis of `size` samples to each column."""
    taps, n = len(low), len(columns)
    before = taps - 2
    wide = np.zeros((2 * n + before, columns.shape[1]))
    for tap, factor in enumerate(low):
        first = before + 1 - tap
        wide[first : first + 2 * n : 2] += factor * columns
    samples = wide[before : before + size].copy()
    outside = np.r_[0:before, before + size : len(wide)]
    place = (outside - before) % (2 * size)
    place = np.where(place < size, place, 2 * size - 1 - place)
    for inside, row in zip(place, outside, strict=True):
        samples[inside] += wide[row]
    return samples


def _synthesis(columns: Float64, low: Float64, size: int) -> Float64:
    """First `size` samples of the low-pass synthesis of each column."""
    taps, n = len(low), len(columns)
    wide = np.zeros((2 * n + taps - 2, columns.shape[1]))
    for tap, factor in enumerate(low):
        wide[tap : tap + 2 * n : 2] += factor * columns
    return wide[taps - 2 : taps - 2 + size].copy()


def _folded(columns: Float64, pad: int) -> Float64:
    """Add the rows of the `pad` mirrored angles at both ends to the rows that they mirror."""
    inner = columns[pad:-pad].copy()
    inner[1 : pad + 1] += columns[pad - 1 :: -1]
    inner[-pad - 1 : -1] += columns[: -pad - 1 : -1]
    return inner


def _even_and_odd(synthesis_filter: Float64) -> NDArray[np.float32]:
    """Taps of even samples and of odd samples, as columns (taps / 2, 2)."""
    return synthesis_filter[::-1].reshape(-1, 2)[:, ::-1].astype(np.float32)


def stripes_into(block: Any, tables: Tables) -> None:
    """Replace sinograms by the stripes in them.

    Parameters
    ----------
    block : array, float32, shape (angles, slices, detector), C-contiguous
        Overwritten by the removed part.
    tables : Tables
        On the same device.
    """
    xp = array_namespace(block)
    n_angles, n_slices, width = block.shape
    flat = block.reshape(n_angles, n_slices * width)
    rows = xp.empty((len(tables.gather), n_slices * width), dtype=xp.float32)
    xp.matmul(tables.gather, flat, out=rows)
    rows = rows.reshape(-1, n_slices, width)
    details = []
    for place, count in zip(tables.reflected, tables.counts, strict=True):
        read = xp.take(rows, place, axis=-1)
        details.append(_products(read[:count], tables.analysis[1])[..., 0])
        rows = _products(read[count:], tables.analysis[0])[..., 0] if len(read) > count else None
        del read
    for place, size in zip(tables.windows[::-1], tables.widths[-2::-1], strict=True):
        detail = details.pop()
        n_rows = len(detail) + (0 if rows is None else len(rows))
        finer = xp.empty((n_rows, n_slices, size), dtype=xp.float32)
        _synthesize(detail, place, tables.synthesis[1], finer[: len(detail)])
        if rows is not None:
            _synthesize(rows, place, tables.synthesis[0], finer[len(detail) :])
        rows = finer
        del detail, finer
    xp.matmul(tables.spread, rows.reshape(-1, n_slices * width), out=flat)


def _products(read: Any, taps: Any) -> Any:
    """Product of the last axis with the columns of `taps`."""
    xp = array_namespace(read)
    return xp.matmul(read.reshape(-1, len(taps)), taps).reshape(*read.shape[:-1], taps.shape[1])


def _synthesize(coefficients: Any, place: Any, taps: Any, out: Any) -> None:
    """Write the samples that coefficients of one band synthesise."""
    xp = array_namespace(coefficients)
    pairs = _products(xp.take(coefficients, place, axis=-1), taps)
    out[...] = pairs.reshape(*out.shape[:-1], -1)[..., : out.shape[-1]]


def account(
    m: Ledger,
    n_angles: int,
    n_slices: int,
    width: int,
    sigma: float,
    wname: str,
    levels: int,
    pad: int,
) -> None:
    """Enter the tables, and the allocations of `stripes_into` for `n_slices` sinograms."""
    taps = filter_length(wname)
    widths, angles = lengths(width, taps, levels), lengths(n_angles + 2 * pad, taps, levels)
    counts = row_counts(angles, sigma)
    n_rows = sum(counts)
    m.alloc((2, n_rows, n_angles), "float32")
    for size in widths[1:]:
        m.alloc((size, taps), "int64")
        m.alloc((size - taps // 2 + 1, taps // 2), "int64")
    for _ in range(4):
        m.alloc(taps, "float32")
    m.alloc((n_angles, n_slices, width), "float32")
    rows = m.alloc((n_rows, n_slices, width), "float32")
    details = []
    for size, count in zip(widths[1:], counts, strict=True):
        read = m.alloc((n_rows, n_slices, size, taps), "float32")
        details.append(m.alloc((count, n_slices, size), "float32"))
        n_rows -= count
        coarser = m.alloc((n_rows, n_slices, size), "float32")
        m.free(rows, read)
        rows = coarser
    for size, finer_size, count in zip(widths[:0:-1], widths[-2::-1], counts[::-1], strict=True):
        n_rows += count
        finer = m.alloc((n_rows, n_slices, finer_size), "float32")
        for n in (count, n_rows - count):
            n_pairs = size - taps // 2 + 1
            read = m.alloc((n, n_slices, n_pairs, taps // 2), "float32")
            pairs = m.alloc((n, n_slices, n_pairs, 2), "float32")
            m.free(read, pairs)
        m.free(rows, details.pop())
        rows = finer


def account_tables(
    m: Ledger, n_angles: int, sigma: float, wname: str, levels: int, pad: int
) -> None:
    """Enter the allocations of `make_tables` on the host."""
    taps = filter_length(wname)
    angles = lengths(n_angles + 2 * pad, taps, levels)
    counts = row_counts(angles, sigma)
    m.alloc((n_angles, sum(counts)), "float32")
    n_rows, columns = 0, m.alloc(0, "float64")
    for size, length, count in zip(angles[-2::-1], angles[:0:-1], counts[::-1], strict=True):
        n_rows += count
        waves = m.alloc((4, length, count), "float64")
        joined = m.alloc((length, n_rows), "float64")
        m.free(waves, columns)
        wide = m.alloc((2 * length + taps - 2, n_rows), "float64")
        m.free(m.alloc((length, n_rows), "float64"))
        columns = m.alloc((size, n_rows), "float64")
        m.free(joined, wide)
    m.alloc((n_angles, n_rows), "float32")
