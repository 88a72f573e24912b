"""Filtered back-projection on CUDA: cuFFT for the filter, and a kernel for the back-projection.

Four slices are filtered together and interleaved. A thread computes its detector position once for
all four, and reads a sample of all four in one 16-byte load. Sines, cosines and weights are
computed once. Rows are interpolated linearly. For "sinc" they are first upsampled by two in the
FFT, and the attenuation by linear interpolation is compensated. Every sum has a fixed order, so
results are reproducible and independent of the block.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices.core.ledger import Ledger

from ._fbp_geometry import (
    Interpolation,
    Lengths,
    RowWindow,
    angle_weights,
    linear_response,
    row_filter,
)

FILTER_ITEMS = 2**24
"""Approximate number of samples filtered at a time. These are far more than keep a GPU busy, and
three arrays of this size (about 200 MB) are small compared with a block."""

SOURCE = r"""
extern "C" __global__ void interleave(
    const float* __restrict__ rows, const float* __restrict__ weights,
    float4* __restrict__ quads, int first_angle, int n_angles, int period, int width, int start)
{
    // rows (angles of this chunk, 4 * groups, period) -> quads (groups, n_angles, width)
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int a = blockIdx.y;
    const int g = blockIdx.z;
    if (x >= width || first_angle + a >= n_angles) return;
    const long long row = ((long long)a * gridDim.z + g) * 4;
    const float* p = rows + row * period + (start + x) % period;
    const float w = weights[first_angle + a];
    const long long to = ((long long)g * n_angles + first_angle + a) * width + x;
    quads[to] = make_float4(
        w * p[0], w * p[period], w * p[2LL * period], w * p[3LL * period]);
}

#define ROWS 4

extern "C" __global__ void __launch_bounds__(256) backproject(
    const float4* __restrict__ quads, const float2* __restrict__ directions,
    float* __restrict__ slices, int n_angles, int width, int size, int n_slices, int first,
    float origin, float radius_squared)
{
    // quads (groups, n_angles, width) -> slices (size, n_slices, size): a thread computes ROWS
    // pixels, blockDim.y rows apart, of 4 slices
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    const int i0 = blockIdx.y * (blockDim.y * ROWS) + threadIdx.y;
    const float middle = 0.5f * (size - 1);
    float x[ROWS], y[ROWS];
    bool inside[ROWS], any = false;
    float4 sum[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        const int i = i0 + k * blockDim.y;
        x[k] = j - middle;
        y[k] = middle - i;
        inside[k] = i < size && j < size && x[k] * x[k] + y[k] * y[k] <= radius_squared;
        any |= inside[k];
        if (!inside[k]) x[k] = y[k] = 0.0f;  // keeps its reads within the row
        sum[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (any) {
        const float4* row = quads + (long long)blockIdx.z * n_angles * width;
        for (int a = 0; a < n_angles; ++a, row += width) {
            const float2 d = __ldg(directions + a);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) {
                const float s = fmaf(x[k], d.x, fmaf(y[k], d.y, origin));
                // floor by adding 2^23: cheaper than two conversions, and 0 <= s < 2^22
                const float shifted = __fadd_rd(s, 8388608.0f);
                const int at = __float_as_int(shifted) - 0x4b000000;
                const float w1 = s - (shifted - 8388608.0f);
                const float w0 = 1.0f - w1;
                const float4 p = __ldg(row + at);
                const float4 q = __ldg(row + at + 1);
                sum[k].x = fmaf(w0, p.x, fmaf(w1, q.x, sum[k].x));
                sum[k].y = fmaf(w0, p.y, fmaf(w1, q.y, sum[k].y));
                sum[k].z = fmaf(w0, p.z, fmaf(w1, q.z, sum[k].z));
                sum[k].w = fmaf(w0, p.w, fmaf(w1, q.w, sum[k].w));
            }
        }
    }
    const int slice = first + 4 * blockIdx.z;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        const int i = i0 + k * blockDim.y;
        if (i >= size || j >= size) continue;
        float* to = slices + ((long long)i * n_slices + slice) * size + j;
        const float4 v = inside[k] ? sum[k] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        to[0] = v.x;
        if (slice + 1 < n_slices) to[size] = v.y;
        if (slice + 2 < n_slices) to[2LL * size] = v.z;
        if (slice + 3 < n_slices) to[3LL * size] = v.w;
    }
}
"""


def reconstruct(
    data: Any,
    angles: NDArray[np.float64],
    center: float,
    window: RowWindow,
    size: Lengths,
    interpolation: Interpolation | None = None,
) -> Any:
    """Reconstruct slices (size, slices, size), float32, from a CuPy array, as `recon.fbp`."""
    import cupy as cp
    from cupyx.scipy import fft

    interleave, backproject = _kernels()
    n_angles, n_slices, detector = data.shape
    finer = _finer(interpolation)
    period, rows, groups = _chunks(size, finer)
    width, pad = _width(size, finer), size.pad
    start = finer * (math.floor(center) + pad - size.reach - 1)
    origin = finer * (center + pad) - start

    slices = cp.empty((size.size, n_slices, size.size), dtype=np.float32)
    directions = cp.asarray(
        finer * np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32, order="C")
    )
    weights = cp.asarray(angle_weights(angles).astype(np.float32))
    ramp = row_filter(period, window) / period
    if finer > 1:
        ramp /= linear_response(np.arange(len(ramp)) * (2 * np.pi / (finer * period)))
        ramp[-1] /= 2  # in an upsampled row, the highest frequency occurs twice
    response = cp.asarray(ramp.astype(np.float32))
    quads = cp.empty((groups, n_angles, width, 4), dtype=np.float32)
    padded = cp.zeros((rows, 4 * groups, period), dtype=np.float32)
    edge = pad + detector
    for first in range(0, n_slices, 4 * groups):
        n = min(4 * groups, n_slices - first)
        for angle in range(0, n_angles, rows):
            part = data[angle : angle + rows, first : first + n]
            target = padded[: len(part), :n]
            target[..., pad:edge] = part
            if pad:
                target[..., :pad] = part[..., :1]
                target[..., edge : edge + pad] = part[..., -1:]
            spectrum = fft.rfft(padded, n=period)
            cp.multiply(spectrum, response, out=spectrum)
            filtered = fft.irfft(spectrum, n=finer * period, overwrite_x=True, norm="forward")
            interleave(
                (-(-width // 256), rows, groups),
                (256,),
                (
                    filtered, weights, quads, np.int32(angle), np.int32(n_angles),
                    np.int32(finer * period), np.int32(width),
                    np.int32(start % (finer * period)),
                ),
            )  # fmt: skip
            del spectrum, filtered  # before the next pair is allocated
        tiles = -(-size.size // 32)
        backproject(
            (tiles, tiles, -(-n // 4)),
            (32, 8),
            (
                quads, directions, slices, np.int32(n_angles), np.int32(width),
                np.int32(size.size), np.int32(n_slices), np.int32(first),
                np.float32(origin), np.float32(size.radius**2),
            ),
        )  # fmt: skip
    return slices


def account(m: Ledger, size: Lengths, interpolation: Interpolation | None = None) -> None:
    """Enter the allocations of `reconstruct` after its result."""
    finer = _finer(interpolation)
    period, rows, groups = _chunks(size, finer)
    m.alloc((size.n_angles, 2), np.float32)  # directions
    m.alloc(size.n_angles, np.float32)  # weights
    m.alloc(period // 2 + 1, np.float32)  # response
    m.alloc((groups, size.n_angles, _width(size, finer), 4), np.float32)  # quads
    m.alloc((rows, 4 * groups, period), np.float32)  # padded
    m.fft((rows, 4 * groups, period), np.float32, (2,), "r2c")
    m.fft((rows, 4 * groups, finer * period), np.float32, (2,), "c2r")
    m.alloc((rows, 4 * groups, finer * period // 2 + 1), np.complex64)  # spectrum
    m.alloc((rows, 4 * groups, finer * period), np.float32)  # filtered
    if finer > 1:
        m.alloc((rows, 4 * groups, period // 2 + 1), np.complex64)  # the shorter spectrum


def _finer(interpolation: Interpolation | None) -> int:
    """Factor by which the filtered rows are upsampled."""
    return 2 if interpolation == "sinc" else 1


def _chunks(size: Lengths, finer: int) -> tuple[int, int, int]:
    """Length of a row's FFT, and numbers of angles and of groups of 4 slices filtered together.

    They do not depend on the number of slices, because cuFFT's order of summation may depend on the
    number of rows. Power-of-two lengths up to 16384 need no workspace.
    """
    period = 1 << (size.row_min - 1).bit_length()
    group_items = size.n_angles * 4 * period * finer
    groups = max(1, min(8, FILTER_ITEMS // group_items))
    parts = -(-group_items * groups // FILTER_ITEMS)
    return period, -(-size.n_angles // parts), groups


def _width(size: Lengths, finer: int) -> int:
    """Number of samples of a filtered row that the slices need, with a margin for rounding."""
    return finer * (2 * size.reach + 4)


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any]:
    import cupy as cp

    module = cp.RawModule(code=SOURCE)
    return module.get_function("interleave"), module.get_function("backproject")
