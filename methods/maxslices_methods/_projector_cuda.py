"""Forward projection of four slices on CUDA, and its exact transpose.

Joseph's method (IEEE Trans. Med. Imaging 1, 192 (1982)): a ray is sampled once on each row or
column of the slice, with linear interpolation. A pixel that projects onto `s` therefore contributes
to the detector pixels under a hat function around `s`. The forward kernel sums along a ray, and the
transpose sums over the two detector pixels under the hat. Both use the same weights, so iterations
that need a matched pair converge. Four slices are interleaved, as in `_fbp_cuda`. Every sum has a
fixed order, so results are reproducible and independent of the block.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices.core.ledger import Ledger

from ._fbp_geometry import Lengths

SLICES = 4
"""Slices that are projected together."""
SOURCE = r"""
#define ADD(sum, weight, v) \
    sum.x = fmaf(weight, v.x, sum.x); sum.y = fmaf(weight, v.y, sum.y); \
    sum.z = fmaf(weight, v.z, sum.z); sum.w = fmaf(weight, v.w, sum.w)

extern "C" __global__ void __launch_bounds__(256) forward(
    const float4* __restrict__ image, const float4* __restrict__ transposed,
    const float2* __restrict__ directions, float4* __restrict__ rows,
    int n_angles, int step, int columns, int size, float center)
{
    // a thread sums a ray over rows of the image, or over columns if the ray is nearly horizontal
    const int s = blockIdx.x * blockDim.x + threadIdx.x;
    const int a = blockIdx.y * blockDim.y + threadIdx.y;
    if (s >= columns || a >= n_angles) return;
    const float2 d = __ldg(directions + (long long)a * step);
    const bool upright = fabsf(d.x) >= fabsf(d.y);
    const float4* from = upright ? image : transposed;
    const float along = upright ? d.x : -d.y, across = upright ? d.y : -d.x;
    const float middle = 0.5f * (size - 1), per = 1.0f / fabsf(along);
    // x cos + y sin = s - center, with x = j - middle and y = middle - i
    const float slope = across / along;
    const float start = middle + (s - center) / along - slope * middle;
    int first = 0, last = size;
    if (slope != 0.0f) {  // lines that the ray crosses within the image
        const float one = (-1.0f - start) / slope, other = (size - start) / slope;
        first = max(0, (int)ceilf(fmaxf(-1.0f, fminf(one, other))) - 1);
        last = min(size, (int)floorf(fminf((float)size, fmaxf(one, other))) + 2);
    }
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int line = first; line < last; ++line) {
        const float at = fmaf(slope, (float)line, start);
        const float low = floorf(at);
        const int j = (int)low;
        const float w1 = at - low, w0 = 1.0f - w1;
        const float4* pixels = from + (long long)line * size;
        if (j >= 0 && j < size) { const float4 v = __ldg(pixels + j); ADD(sum, w0, v); }
        if (j >= -1 && j < size - 1) { const float4 v = __ldg(pixels + j + 1); ADD(sum, w1, v); }
    }
    rows[(long long)a * columns + s] = make_float4(
        per * sum.x, per * sum.y, per * sum.z, per * sum.w);
}

extern "C" __global__ void __launch_bounds__(256) transpose(
    const float4* __restrict__ rows, const float2* __restrict__ directions,
    float4* __restrict__ image, int n_angles, int step, int columns, int size, float center)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    const int i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= size || j >= size) return;
    const float x = j - 0.5f * (size - 1), y = 0.5f * (size - 1) - i;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int a = 0; a < n_angles; ++a) {
        const float2 d = __ldg(directions + (long long)a * step);
        const float per = 1.0f / fmaxf(fabsf(d.x), fabsf(d.y));
        const float s = fmaf(x, d.x, fmaf(y, d.y, center));
        const float low = floorf(s);
        const int at = (int)low;
        const float w0 = per * fmaxf(0.0f, 1.0f - per * (s - low));
        const float w1 = per * fmaxf(0.0f, 1.0f - per * (low + 1.0f - s));
        const float4* row = rows + (long long)a * columns;
        if (at >= 0 && at < columns) { const float4 v = __ldg(row + at); ADD(sum, w0, v); }
        if (at >= -1 && at < columns - 1) { const float4 v = __ldg(row + at + 1); ADD(sum, w1, v); }
    }
    image[(long long)i * size + j] = sum;
}
"""


class Projector:
    """Forward projection of four slices, and its transpose.

    Parameters
    ----------
    angles : numpy.ndarray, shape (angles,)
        Angles in radians.
    center : float
        Position of the rotation axis on the detector, in pixels from the centre of the first pixel.
    size : Lengths
        Sizes of rows and slices.
    """

    def __init__(self, angles: NDArray[np.float64], center: float, size: Lengths) -> None:
        import cupy as cp

        self.xp = cp
        self.size = size
        self.columns = size.detector + 2 * size.pad
        self.image_shape = (size.size, size.size, SLICES)
        self._center = np.float32(center + size.pad)
        self._directions = cp.asarray(
            np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32, order="C")
        )
        self._image = cp.empty(self.image_shape, np.float32)

    def forward(self, image: Any, out: Any, subset: slice = slice(None)) -> None:
        """Project images (side, side, 4) to rows (angles of the subset, columns, 4)."""
        self._image[...] = image.transpose(1, 0, 2)
        grid = (-(-self.columns // 32), -(-len(out) // 8))
        self._run(0, grid, (image, self._image), (out,), len(out), subset)

    def transpose(self, rows: Any, subset: slice = slice(None)) -> Any:
        """Back-project rows (angles of the subset, columns, 4) to images (side, side, 4).

        Returns the projector's memory, which the next call overwrites.
        """
        grid = (-(-self.size.size // 32), -(-self.size.size // 8))
        self._run(1, grid, (rows,), (self._image,), len(rows), subset)
        return self._image

    def _run(
        self,
        kernel: int,
        grid: tuple[int, int],
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        n_angles: int,
        subset: slice,
    ) -> None:
        first, _, step = subset.indices(self.size.n_angles)
        sizes = [np.int32(n) for n in (n_angles, step, self.columns, self.size.size)]
        directions = self._directions[first:]
        _kernels()[kernel](grid, (32, 8), (*inputs, directions, *outputs, *sizes, self._center))


def account(m: Ledger, size: Lengths) -> None:
    """Enter the allocations of a `Projector`."""
    m.alloc((size.n_angles, 2), np.float32)
    m.alloc((size.size, size.size, SLICES), np.float32)


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any]:
    import cupy as cp

    module = cp.RawModule(code=SOURCE)
    return module.get_function("forward"), module.get_function("transpose")
