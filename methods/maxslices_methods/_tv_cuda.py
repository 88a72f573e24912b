"""Total variation on CUDA: one or two kernels an iteration, without scratch arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from maxslices.core.ledger import Ledger

SOURCE = r"""
#define HERE(z, y, x) (((long long)(z) * ny + (y)) * nx + (x))

__device__ float minmod(float a, float b)
{
    return fmaxf(fminf(a, b), fminf(fmaxf(a, b), 0.0f));
}

// the forward difference along the first pair divided by the length of the gradient.
// Neighbours beyond a border are passed as the voxel itself
__device__ float flow(float at, float ahead, float a1, float b1, float a2, float b2)
{
    const float d = ahead - at;
    const float m1 = minmod(a1 - at, at - b1);
    const float m2 = minmod(a2 - at, at - b2);
    return d / sqrtf(d * d + 1e-8f + m1 * m1 + m2 * m2);
}

extern "C" __global__ void rof(
    const float* __restrict__ source, const float* __restrict__ from, float* __restrict__ to,
    int nz, int ny, int nx, float strength, float step)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y;
    if (x >= nx) return;
    const int xb = max(x - 1, 0), xa = min(x + 1, nx - 1);
    const int yb = max(y - 1, 0), ya = min(y + 1, ny - 1);
    for (int z = blockIdx.z; z < nz; z += gridDim.z) {
        const int zb = max(z - 1, 0), za = min(z + 1, nz - 1);
#define V(k, j, i) from[HERE(k, j, i)]
        const float v = V(z, y, x);
        float sum = flow(v, V(z, y, xa), V(z, ya, x), V(z, yb, x), V(za, y, x), V(zb, y, x))
                  + flow(v, V(z, ya, x), V(z, y, xa), V(z, y, xb), V(za, y, x), V(zb, y, x))
                  + flow(v, V(za, y, x), V(z, ya, x), V(z, yb, x), V(z, y, xa), V(z, y, xb));
        if (x > 0)
            sum -= flow(V(z, y, xb), v, V(z, ya, xb), V(z, yb, xb), V(za, y, xb), V(zb, y, xb));
        if (y > 0)
            sum -= flow(V(z, yb, x), v, V(z, yb, xa), V(z, yb, xb), V(za, yb, x), V(zb, yb, x));
        if (z > 0)
            sum -= flow(V(zb, y, x), v, V(zb, ya, x), V(zb, yb, x), V(zb, y, xa), V(zb, y, xb));
        const long long here = HERE(z, y, x);
        to[here] = v + step * (strength * sum - (v - source[here]));
    }
}

extern "C" __global__ void dual_step(
    const float* __restrict__ ahead, float* __restrict__ pz, float* __restrict__ py,
    float* __restrict__ px, int nz, int ny, int nx, float sigma, int isotropic)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y;
    if (x >= nx) return;
    for (int z = blockIdx.z; z < nz; z += gridDim.z) {
        const long long here = HERE(z, y, x);
        const float v = ahead[here];
        float a = pz[here], b = py[here], c = px[here];
        if (z + 1 < nz) a += sigma * (ahead[HERE(z + 1, y, x)] - v);
        if (y + 1 < ny) b += sigma * (ahead[HERE(z, y + 1, x)] - v);
        if (x + 1 < nx) c += sigma * (ahead[here + 1] - v);
        if (isotropic) {
            const float length = fmaxf(1.0f, sqrtf(a * a + b * b + c * c));
            a /= length;
            b /= length;
            c /= length;
        } else {
            a = fminf(1.0f, fmaxf(-1.0f, a));
            b = fminf(1.0f, fmaxf(-1.0f, b));
            c = fminf(1.0f, fmaxf(-1.0f, c));
        }
        pz[here] = a;
        py[here] = b;
        px[here] = c;
    }
}

extern "C" __global__ void primal_step(
    const float* __restrict__ source, const float* __restrict__ pz, const float* __restrict__ py,
    const float* __restrict__ px, float* __restrict__ volume, float* __restrict__ ahead,
    int nz, int ny, int nx, float tau, float pull, float scale, int nonnegativity)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y;
    if (x >= nx) return;
    for (int z = blockIdx.z; z < nz; z += gridDim.z) {
        const long long here = HERE(z, y, x);
        float sum = pz[here] + py[here] + px[here];
        if (x > 0) sum -= px[here - 1];
        if (y > 0) sum -= py[HERE(z, y - 1, x)];
        if (z > 0) sum -= pz[HERE(z - 1, y, x)];
        const float old = volume[here];
        float v = (old + tau * sum + pull * source[here]) * scale;
        if (nonnegativity) v = fmaxf(v, 0.0f);
        volume[here] = v;
        ahead[here] = 2.0f * v - old;
    }
}
"""

THREADS = 128
MAX_GRID = 65535
"""CUDA's limit for the second and third axes of a grid. Kernels loop over further planes."""


def rof(source: Any, strength: float, iterations: int, step: float) -> Any:
    """Smooth a volume by `iterations` explicit steps, as `total_variation_rof`."""
    import cupy as cp

    source = cp.ascontiguousarray(source)
    kernel = _kernels()[0]
    grid, sizes = _launch(source.shape)
    scalars = (*sizes, np.float32(strength), np.float32(step))
    volume, spare = source, None
    for i in range(iterations):
        target = cp.empty_like(source) if i < 2 else spare
        kernel(grid, (THREADS,), (source, volume, target, *scalars))
        volume, spare = target, volume
    return volume


def account_rof(m: Ledger, shape: tuple[int, int, int], iterations: int) -> None:
    """Enter the allocations of `rof`."""
    for _ in range(min(iterations, 2)):
        m.alloc(shape, np.float32)


def primal_dual(
    source: Any,
    *,
    iterations: int,
    tau: float,
    sigma: float,
    pull: float,
    isotropic: bool,
    nonnegativity: bool,
) -> Any:
    """Smooth a volume by `iterations` primal-dual steps, as `total_variation_pd`."""
    import cupy as cp

    source = cp.ascontiguousarray(source)
    _, dual_step, primal_step = _kernels()
    grid, sizes = _launch(source.shape)
    volume, ahead = source.copy(), source.copy()
    dual = [cp.zeros_like(source) for _ in range(3)]
    scale = np.float32(1 / (1 + pull))
    for _ in range(iterations):
        dual_step(grid, (THREADS,), (ahead, *dual, *sizes, np.float32(sigma), np.int32(isotropic)))
        primal_step(
            grid,
            (THREADS,),
            (
                source, *dual, volume, ahead, *sizes, np.float32(tau), np.float32(pull), scale,
                np.int32(nonnegativity),
            ),
        )  # fmt: skip
    return volume


def account_pd(m: Ledger, shape: tuple[int, int, int]) -> None:
    """Enter the allocations of `primal_dual`."""
    for _ in range(5):
        m.alloc(shape, np.float32)


def _launch(shape: tuple[int, int, int]) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
    nz, ny, nx = shape
    if ny > MAX_GRID:
        raise ValueError(f"total variation takes at most {MAX_GRID} detector rows, not {ny}")
    grid = (-(-nx // THREADS), ny, min(nz, MAX_GRID))
    return grid, (np.int32(nz), np.int32(ny), np.int32(nx))


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any, Any]:
    import cupy as cp

    module = cp.RawModule(code=SOURCE)
    return tuple(module.get_function(name) for name in ("rof", "dual_step", "primal_step"))
