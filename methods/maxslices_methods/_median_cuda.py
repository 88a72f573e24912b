"""Medians of cubes of voxels on a GPU, by two CUDA kernels.

cupyx's filter sorts each neighbourhood in local memory. The kernel for 27 values computes the
median by a network of 104 steps in registers. Keys, padding and network are as in `_median`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ._median import HIGHEST, LOWEST, MERGE_COLUMNS, MIDDLE, SELECT, SELECTED

C_TYPES = {"uint8": "unsigned char", "uint16": "unsigned short", "float32": "float"}
THREADS = 128
ROWS = 48
"""Rows per thread of the 3 x 3 x 3 kernel. A thread also reads two further rows, one at each end,
so fewer rows would mean more reads per row."""
TILE_X, TILE_Y = 32, 8

_COMMON = r"""
typedef long long Index;

// Integer keys in the order of the values. For a float, its bits: if it is negative, all except
// the sign are flipped. NaN is the largest.
__device__ __forceinline__ int key_of(unsigned char value) { return value; }
__device__ __forceinline__ int key_of(unsigned short value) { return value; }
__device__ __forceinline__ int key_of(float value) {
  const int bits = __float_as_int(value);
  return value != value ? 0x7fffffff : bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ __forceinline__ void value_of(int key, unsigned char& value) { value = key; }
__device__ __forceinline__ void value_of(int key, unsigned short& value) { value = key; }
__device__ __forceinline__ void value_of(int key, float& value) {
  value = __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

__device__ __forceinline__ int clamped(int i, int n) { return min(max(i, 0), n - 1); }

// The median, or the value itself if it differs by less than `dif`. NaN is always replaced.
__device__ __forceinline__ T finished(T value, int key, float dif) {
  T middle;
  value_of(key, middle);
  return fabsf((float)value - (float)middle) < dif ? value : middle;
}
"""

_SMALL = r"""
extern "C" __global__ void __launch_bounds__(THREADS)
median_27(const T* data, T* out, int n_z, int n_y, int n_x,
          Index step_z, Index step_y, Index step_x, float dif) {
  const int x = blockIdx.x * THREADS + threadIdx.x;
  const int y_first = blockIdx.y * ROWS;
  if (x >= n_x) return;
  const int y_end = min(y_first + ROWS, n_y);
  Index column[3];
  for (int i = 0; i < 3; ++i) column[i] = clamped(x - 1 + i, n_x) * step_x;
  for (int z = blockIdx.z; z < n_z; z += gridDim.z) {
    Index plane[3];
    for (int i = 0; i < 3; ++i) plane[i] = clamped(z - 1 + i, n_z) * step_z;
    auto load = [&](int* v, int y) {
      const Index line = clamped(y, n_y) * step_y;
      #pragma unroll
      for (int i = 0; i < 3; ++i)
        #pragma unroll
        for (int k = 0; k < 3; ++k) v[3 * i + k] = key_of(data[plane[i] + line + column[k]]);
      sort_nine(v);
    };
    auto store = [&](int y, int key) {
      const T value = data[plane[1] + y * step_y + column[1]];
      out[((Index)z * n_y + y) * n_x + x] = finished(value, key, dif);
    };
    // Three sorted planes. The next plane replaces the oldest, so the loop has steps of three.
    int p[9], q[9], r[9];
    load(p, y_first - 1);
    load(q, y_first);
    for (int y = y_first; y < y_end; y += 3) {
      load(r, y + 1);
      store(y, median_of(p, q, r));
      if (y + 1 < y_end) {
        load(p, y + 2);
        store(y + 1, median_of(q, r, p));
      }
      if (y + 2 < y_end) {
        load(q, y + 3);
        store(y + 2, median_of(r, p, q));
      }
    }
  }
}
"""

_LARGE = r"""
// Bit by bit, the largest key with at most half of the cube below it. The cube is read from
// shared memory once per bit, without sorting.
extern "C" __global__ void __launch_bounds__(TILE_X * TILE_Y)
median_cube(const T* data, T* out, int n_z, int n_y, int n_x,
            Index step_z, Index step_y, Index step_x, float dif) {
  constexpr int radius = SIZE / 2, wide = TILE_X + SIZE - 1, high = TILE_Y + SIZE - 1;
  __shared__ unsigned tile[SIZE][high][wide];
  const int x_first = blockIdx.x * TILE_X, y_first = blockIdx.y * TILE_Y;
  const int x = x_first + threadIdx.x, y = y_first + threadIdx.y;
  for (int z = blockIdx.z; z < n_z; z += gridDim.z) {
    __syncthreads();
    for (int i = threadIdx.y * TILE_X + threadIdx.x; i < SIZE * high * wide;
         i += TILE_X * TILE_Y) {
      const int dx = i % wide, dy = i / wide % high, dz = i / (wide * high);
      const T value = data[clamped(z - radius + dz, n_z) * step_z +
                           clamped(y_first - radius + dy, n_y) * step_y +
                           clamped(x_first - radius + dx, n_x) * step_x];
      tile[dz][dy][dx] = (unsigned)key_of(value) ^ SIGN_BIT;
    }
    __syncthreads();
    if (x >= n_x || y >= n_y) continue;
    unsigned median_key = 0;
    for (unsigned bit = TOP_BIT; bit != 0; bit >>= 1) {
      const unsigned trial = median_key | bit;
      int below = 0;
      for (int dz = 0; dz < SIZE; ++dz)
        for (int dy = 0; dy < SIZE; ++dy)
          #pragma unroll
          for (int dx = 0; dx < SIZE; ++dx)
            below += tile[dz][threadIdx.y + dy][threadIdx.x + dx] < trial;
      if (below <= SIZE * SIZE * SIZE / 2) median_key = trial;
    }
    const T value = data[z * step_z + y * step_y + x * step_x];
    out[((Index)z * n_y + y) * n_x + x] = finished(value, (int)(median_key ^ SIGN_BIT), dif);
  }
}
"""


def source(dtype: str, size: int) -> str:
    """CUDA source of the kernel for a dtype and an edge of the cube."""
    lines = [f"typedef {C_TYPES[dtype]} T;"]
    if size == 3:
        constants, body = {"THREADS": THREADS, "ROWS": ROWS}, _network() + _SMALL
    else:
        bits = {"uint8": 8, "uint16": 16, "float32": 32}[dtype]
        constants = {
            "SIZE": size,
            "TILE_X": TILE_X,
            "TILE_Y": TILE_Y,
            "SIGN_BIT": 1 << 31 if dtype == "float32" else 0,
            "TOP_BIT": 1 << (bits - 1),
        }
        body = _LARGE
    lines += [f"#define {name} {value}u" for name, value in constants.items()]
    return "\n".join(lines) + _COMMON + body


def _network() -> str:
    """Write the network of `_median` as device functions."""
    triples = [(3 * i + a, 3 * i + b) for i in range(3) for a, b in ((0, 1), (1, 2), (0, 1))]
    across = [(3 * a + k, 3 * b + k) for k in range(3) for a, b in ((0, 1), (1, 2), (0, 1))]
    nine = [f"exchange(v[{a}], v[{b}]);" for a, b in (*triples, *across, *MERGE_COLUMNS)]

    low = {j: i for i, j in enumerate(LOWEST)}
    middle = {j: len(low) + i for i, j in enumerate(MIDDLE)}
    high = {j: len(low) + len(middle) + i for i, j in enumerate(HIGHEST)}
    median = []
    for j in range(9):
        median.append(f"a = min(p[{j}], q[{j}]); b = max(p[{j}], q[{j}]);")
        if j in low:
            median.append(f"c[{low[j]}] = min(a, r[{j}]);")
        if j in middle:
            median.append(f"c[{middle[j]}] = max(a, min(b, r[{j}]));")
        if j in high:
            median.append(f"c[{high[j]}] = max(b, r[{j}]);")
    for i, k, which in SELECT:
        median.append(f"a = min(c[{i}], c[{k}]); b = max(c[{i}], c[{k}]);")
        median += [f"c[{i}] = a;"] * (which != "high") + [f"c[{k}] = b;"] * (which != "low")
    return "\n".join(
        [
            "",
            "__device__ __forceinline__ void exchange(int& a, int& b) {",
            "  const int low = min(a, b); b = max(a, b); a = low;",
            "}",
            "__device__ __forceinline__ void sort_nine(int* v) {",
            *(f"  {line}" for line in nine),
            "}",
            "__device__ __forceinline__ int median_of(const int* p, const int* q, const int* r) {",
            "  int a, b, c[13];",
            *(f"  {line}" for line in median),
            f"  return c[{SELECTED}];",
            "}",
        ]
    )


@cache
def _kernel(dtype: str, size: int) -> Any:
    import cupy

    name = "median_27" if size == 3 else "median_cube"
    return cupy.RawKernel(source(dtype, size), name, options=("-std=c++17",))


def median(data: Any, out: Any, size: int, dif: float | None) -> None:
    """Write the medians of `data` to the C-contiguous `out`, both on the GPU.

    With `dif`, voxels that differ from their median by less keep their values.
    """
    n_z, n_y, n_x = data.shape
    if size == 3:
        grid, block = (-(-n_x // THREADS), -(-n_y // ROWS)), (THREADS, 1, 1)
    else:
        grid, block = (-(-n_x // TILE_X), -(-n_y // TILE_Y)), (TILE_X, TILE_Y, 1)
    steps = [np.int64(step // data.itemsize) for step in data.strides]
    numbers = [np.int32(n) for n in data.shape]
    if dif is None:
        dif = -1.0  # no difference is below -1, so all voxels are replaced
    elif data.dtype.kind == "u":
        dif = min(math.ceil(dif), 2**16)
    kernel = _kernel(str(data.dtype), size)
    kernel((*grid, min(n_z, 65535)), block, (data, out, *numbers, *steps, np.float32(dif)))
