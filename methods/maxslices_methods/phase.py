"""Phase retrieval of projections taken at a distance behind the object."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from maxslices import Ledger, from_ledger, method
from maxslices.httomo.paganin_reach import alpha_um2, paganin_reach

from .namespaces import array_namespace, fast_length, on_gpu, scipy_module

PaddingMethod = Literal["next_power_of_2", "next_fast_length", "use_pad_x_y"]

CHUNK_BYTES = {"cuda": 128 * 2**20, "cpu": 4 * 2**20}
"""Bytes of padded frames transformed together: enough to keep a GPU busy, and few enough for the
caches of a CPU."""

MAX_CHUNK_FRAMES = 16
"""Most frames of a chunk: on a GPU every chunk has the same number of frames, and a block with
fewer is padded to it."""

OBJECT_BYTES = {"cuda": 0, "cpu": 2**15}
"""Bytes of array objects and, before NumPy 2.3, of NumPy's buffers: on a CPU they are in the
budget."""

LOWEST_TRANSMISSION = 1e-6
"""Least transmission after filtering. Smaller values, which may not have a logarithm, are
raised."""


def _chunk_frames(height: int, width: int, device: str) -> int:
    """Number of padded frames transformed together."""
    return min(max(1, CHUNK_BYTES[device] // (height * width * 4)), MAX_CHUNK_FRAMES)


def _padding(
    shape: tuple[int, ...], calculate_padding_value_method: str, pad_x_y: list[int] | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Margins (top, left) and padded (height, width) of frames of ``shape[1:]``.

    The width is even: with an odd one cuFFT transforms two rows as one complex row, and the result
    would depend on which rows are neighbours.
    """
    frame = (shape[1], shape[2])
    if calculate_padding_value_method == "use_pad_x_y":
        if pad_x_y is None or len(pad_x_y) != 2 or min(pad_x_y) < 0:
            raise ValueError(
                "pad_x_y must be two numbers of pixels of at least 0, horizontal and vertical, "
                f"where calculate_padding_value_method is 'use_pad_x_y', not {pad_x_y!r}"
            )
        margins = (int(pad_x_y[1]), int(pad_x_y[0]))
        height, width = (size + 2 * pad for size, pad in zip(frame, margins, strict=True))
        return margins, (height, width + width % 2)
    if pad_x_y is not None:
        raise ValueError(
            f"pad_x_y={pad_x_y!r} is used only with calculate_padding_value_method='use_pad_x_y', "
            f"not with {calculate_padding_value_method!r}"
        )
    if calculate_padding_value_method == "next_power_of_2":
        height, width = (1 << size.bit_length() for size in frame)
    elif calculate_padding_value_method == "next_fast_length":
        height, width = (2 * fast_length((s + 1) // 2) for s in frame)
    else:
        raise ValueError(
            "calculate_padding_value_method must be 'next_power_of_2', 'next_fast_length' or "
            f"'use_pad_x_y', not {calculate_padding_value_method!r}"
        )
    return ((height - frame[0]) // 2, (width - frame[1]) // 2), (height, width)


@lru_cache(maxsize=64)
def _work(frames: int, height: int, width: int, device: Literal["cuda", "cpu"]) -> Ledger:
    """Ledger of all allocations that do not grow with the number of slices."""
    half = width // 2 + 1
    with Ledger(device) as m:
        m.alloc_bytes(OBJECT_BYTES[device])
        m.alloc((height, half), "float32")
        m.fft((frames, height, width), "float32", (1, 2), "r2c")
        m.fft((frames, height, width), "float32", (1, 2), "c2r")
        m.alloc((frames, height, width), "float32")
        m.alloc((frames, height, half), "complex64")
    return m


@from_ledger
def _paganin_needs(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    calculate_padding_value_method: str,
    pad_x_y: list[int] | None,
) -> None:
    _, (height, width) = _padding(shape, calculate_padding_value_method, pad_x_y)
    frames = _chunk_frames(height, width, m.device)
    if m.device == "cpu":
        frames = min(frames, shape[0])
    work = _work(frames, height, width, m.device)
    m.alloc(shape, dtype)
    m.alloc(shape, np.float32)
    m.alloc_bytes(work.peak_bytes)
    m.kept_bytes += work.kept_bytes


def _response(xp: Any, height: int, width: int, pixel_size: float, alpha: float) -> Any:
    """1 / (1 + alpha k^2) over height * width, in the half-plane of a real transform."""
    scale = float(height * width)
    ky = 2 * math.pi * np.fft.fftfreq(height, pixel_size)
    kx = 2 * math.pi * np.fft.rfftfreq(width, pixel_size)
    rows = xp.asarray((scale * (1 + alpha * ky**2)).astype(np.float32))
    columns = xp.asarray((scale * alpha * kx**2).astype(np.float32))
    response = rows[:, None] + columns[None, :]
    xp.reciprocal(response, out=response)
    return response


def _filter_chunk(
    chunk: Any, result: Any, frames: int, margins: tuple[int, int], width: int, response: Any
) -> None:
    """Write minus the logarithm of the filtered frames of `chunk` into `result`."""
    xp, fft = array_namespace(chunk), scipy_module(chunk, "fft")
    n, rows, columns = chunk.shape
    height = response.shape[0]
    top, left = margins
    bottom, right = top + rows, left + columns
    padded = xp.empty((frames, height, width), dtype=xp.float32)
    if n < frames:
        padded[n:] = 0
    padded[:n, top:bottom, left:right] = chunk
    padded[:n, top:bottom, :left] = chunk[:, :, :1]
    padded[:n, top:bottom, right:] = chunk[:, :, -1:]
    for frame in range(n) if not on_gpu(chunk) else [slice(None, n)]:
        # Frame by frame, because NumPy then detects that rows do not overlap, and does not copy.
        padded[frame, ..., :top, :] = padded[frame, ..., top : top + 1, :]
        padded[frame, ..., bottom:, :] = padded[frame, ..., bottom - 1 : bottom, :]
    spectrum = fft.rfft2(padded)
    del padded
    spectrum *= response
    if on_gpu(chunk):
        filtered = fft.irfft2(spectrum, s=(height, width), norm="forward", overwrite_x=True)
    else:  # SciPy's transform of both axes together makes a copy that Python's meters do not see
        spectrum = fft.ifft(spectrum, axis=1, norm="forward", overwrite_x=True)
        filtered = fft.irfft(spectrum, width, axis=2, norm="forward")
    del spectrum
    xp.maximum(filtered[:n, top:bottom, left:right], LOWEST_TRANSMISSION, out=result)
    xp.log(result, out=result)
    xp.negative(result, out=result)


def _row_reach(pixel_size: float, distance: float, energy: float, ratio_delta_beta: float) -> int:
    return paganin_reach(pixel_size, distance, energy, ratio_delta_beta)


def _check_optics(
    pixel_size: float, distance: float, energy: float, ratio_delta_beta: float
) -> None:
    for name, value in (
        ("pixel_size", pixel_size),
        ("distance", distance),
        ("energy", energy),
        ("ratio_delta_beta", ratio_delta_beta),
    ):
        if not 0 < value < math.inf:
            raise ValueError(f"paganin_filter: {name} must be positive and finite, not {value!r}")


@method(
    "projection",
    calc_max_slices=_paganin_needs,
    output_dtype="float32",
    row_reach=_row_reach,
    check_values=_check_optics,
    takes="transmission",
    gives="thickness",
)
def paganin_filter(
    data: Any,
    pixel_size: float = 1.28,
    distance: float = 1.0,
    energy: float = 53.0,
    ratio_delta_beta: float = 250,
    calculate_padding_value_method: PaddingMethod = "next_power_of_2",
    pad_x_y: list[int] | None = None,
) -> Any:
    r"""Retrieve the projected thickness of a single-material object from its projections.

    The result is :math:`-\ln F^{-1}(F(I) / (1 + \alpha (k_x^2 + k_y^2)))` with
    :math:`\alpha = \lambda \Delta \delta / (4 \pi \beta)`: the thickness times the linear
    attenuation coefficient (Paganin et al. 2002, equation 12; 2020, equation 10).

    Parameters
    ----------
    data : array, float32 or uint16, shape (angles, detector_y, detector_x)
        Projections divided by the flat field, before any logarithm.
    pixel_size : float
        Detector pixel in micrometre.
    distance : float
        Propagation from object to detector in metre.
    energy : float
        Photon energy of the beam in keV.
    ratio_delta_beta : float
        Refractive index decrement delta divided by absorption index beta. Larger values smooth
        more.
    calculate_padding_value_method : {"next_power_of_2", "next_fast_length", "use_pad_x_y"}
        Size to which frames are padded with their edge values: the next power of two above their
        size, the next even size with a fast FFT, or by the margins `pad_x_y`.
    pad_x_y : list of two int, optional
        Pixels added on each side, horizontally and vertically. An odd width is padded by one more.

    Returns
    -------
    array, float32, shape as `data`

    Raises
    ------
    ValueError
        If a parameter is not positive, or the padding is unknown.

    Notes
    -----
    Wave numbers follow the formula, up to pi over the pixel size. The function of this name in
    httomolibgpu uses twice these values, so it smooths like this one with four times the
    `ratio_delta_beta`.

    References
    ----------
    D. Paganin et al., J. Microsc. 206, 33 (2002); D. M. Paganin et al., Phys. Med. Biol. 65,
    205007 (2020).
    """
    _check_optics(pixel_size, distance, energy, ratio_delta_beta)
    margins, (height, width) = _padding(data.shape, calculate_padding_value_method, pad_x_y)
    xp = array_namespace(data)
    alpha = alpha_um2(distance, energy, ratio_delta_beta)
    response = _response(xp, height, width, pixel_size, alpha)
    result = xp.empty(data.shape, dtype=xp.float32)
    n, step = data.shape[0], _chunk_frames(height, width, "cuda" if on_gpu(data) else "cpu")
    for start in range(0, n, step):
        stop = min(start + step, n)
        # cuFFT's kernel, and so its rounding, may depend on the number of frames.
        frames = step if on_gpu(data) else stop - start
        _filter_chunk(data[start:stop], result[start:stop], frames, margins, width, response)
    return result
