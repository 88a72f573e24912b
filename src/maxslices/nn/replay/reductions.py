"""Buffers that torch's sums take on CUDA beside their results.

A sum of many items to few results is split over thread blocks, which combine their parts in a
buffer in global memory. Its size follows from shape and strides by the rules of
``ATen/native/cuda/Reduce.cuh``; on a card with 132 multiprocessors the gradient of a bias takes up
to 132 MiB for a moment.
"""

from __future__ import annotations

from math import prod

MAX_THREADS = 512
"""Threads of a block (``MAX_NUM_THREADS``)."""
WARP = 32
"""Threads of a warp, on every device that torch supports."""
THREADS_PER_MULTIPROCESSOR = 2048
"""Threads that a multiprocessor holds at once on compute capability 8.0 and 9.0."""
LEAST_VALUES, MOST_VALUES = 16, 256
"""Items that a thread adds at least, and at most before the work is split over blocks
(``min_values_per_thread`` and ``max_values_per_thread`` in ``setReduceConfig``)."""


def reduction_bytes(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    reduced: tuple[int, ...],
    item_bytes: int,
    multiprocessors: int,
) -> tuple[int, int]:
    """Bytes of the buffer and of the counters of a sum; (0, 0) if it needs none.

    Parameters
    ----------
    shape, strides : tuple of int
        Shape and strides of the operand, in items.
    reduced : tuple of int
        1 for each axis that is summed over, 0 for the others.
    item_bytes : int
        Bytes of an item of the operand. Sums take 4 bytes, or 8 for double precision.
    multiprocessors : int
        Multiprocessors of the device.
    """
    inner = _merged([(n, s) for n, s, r in zip(shape, strides, reduced, strict=True) if r])
    outer = _merged([(n, s) for n, s, r in zip(shape, strides, reduced, strict=True) if not r])
    n_inputs, n_outputs = prod(n for n, _ in inner), prod(n for n, _ in outer)
    if not inner or not n_inputs or not n_outputs:
        return 0, 0
    along_inner = not outer or inner[0][1] < outer[0][1]
    vector = 1
    if along_inner:
        width, height = n_inputs, n_outputs
        if inner[0][1] == 1 and width >= 128 and len(inner) == 1 and not outer:
            width //= 4
    else:
        width, height = n_outputs, n_inputs
        if outer[0][1] == 1:
            vector = _vector(outer[0][0], [s for _, s in (*inner, *outer[1:])])
            width //= vector
    limit = MAX_THREADS // vector
    wide, high = (_power(n) if n < limit else limit for n in (width, height))
    block_x = min(wide, WARP)
    block_y = min(high, limit // block_x)
    block_x = min(wide, limit // block_y)
    values = -(-n_inputs // block_x) if along_inner else n_inputs
    step_output = 1 if along_inner else block_x
    if not (values >= block_y * LEAST_VALUES or values >= MOST_VALUES):
        return 0, 0  # each warp computes a result of its own
    values = -(-values // block_y)
    grid = -(-(n_outputs // vector) // step_output)
    target = multiprocessors * (THREADS_PER_MULTIPROCESSOR // (block_x * block_y))
    if values < MOST_VALUES or grid > target:
        return 0, 0
    blocks = max(min(-(-target // grid), -(-values // LEAST_VALUES)), -(-values // MOST_VALUES))
    if blocks <= 1:
        return 0, 0
    size = max(4, item_bytes) * n_outputs * blocks
    return size * (1 if along_inner else block_x * vector), 4 * grid


def _merged(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Axes (length, stride) by rising stride, those contiguous with each other merged."""
    merged: list[tuple[int, int]] = []
    for n, stride in sorted((a for a in axes if a[0] != 1), key=lambda axis: axis[1]):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = merged[-1][0] * n, merged[-1][1]
        else:
            merged.append((n, stride))
    return merged or ([(1, 1)] if axes else [])


def _vector(length: int, strides: list[int]) -> int:
    """Neighbouring results that a thread computes."""
    vector = 4
    while vector > 1 and any(n % vector for n in (length, *strides)):
        vector //= 2
    return vector


def _power(n: int) -> int:
    """Largest power of two up to n."""
    return int(1 << (max(1, n).bit_length() - 1))
