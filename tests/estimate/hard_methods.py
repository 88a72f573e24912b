"""Methods made to be hard to measure, with the memory that they really take, in slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

ROWS = COLUMNS = 100
SLICE_BYTES = ROWS * COLUMNS * 4
STAYS: list[Any] = []
CACHE: dict[int, Any] = {}


def slices(n):
    """Memory of n slices."""
    return np.empty(n * ROWS * COLUMNS, np.float32)


def plain(data):
    return data * 2


def step_at_7(data):
    result = data * 2
    if len(data) >= 7:
        slices(50)
    return result


def two_slopes(data):
    slices(100)
    return slices(2 * len(data))[: data.size].reshape(data.shape)


def large_fixed_cost(data):
    work = slices(130)
    return data * 2 + work[0] * 0


def chunks_of_16(data):
    result = np.empty_like(data)
    for start in range(0, len(data), 16):
        slices(3 * min(16, len(data) - start))
    return result


def padded_to_16(data):
    work = slices(-(-len(data) // 16) * 16)
    work[0] = 0
    return np.multiply(data, 2)


def padded_to_power_of_two(data):
    work = slices(1 << (len(data) - 1).bit_length())
    work[0] = 0
    return np.multiply(data, 2)


def plan_cache(data):
    CACHE.setdefault(len(data), slices(len(data)))
    return data * 2


def growing_work_area(data):
    """Keep one workspace, of the largest size so far."""
    if 0 not in CACHE or len(CACHE[0]) < len(data) * ROWS * COLUMNS:
        CACHE.pop(0, None)
        CACHE[0] = slices(len(data))
    return data * 2


def constant(data):
    if 0 not in CACHE:
        CACHE[0] = slices(40)
    return data * 2


def depends_on_data(data):
    bright = data[data > 0.5]
    bright = bright * 2
    return data * 2


def fails_at_1(data):
    if len(data) < 2:
        raise ValueError("at least 2 slices")
    return data * 2


def modifies_its_input(data):
    if data.max() > 1:
        slices(1000)
    data *= 10
    return data.copy()


def quadratic(data):
    work = np.empty(len(data) ** 2 * 500, np.float32)
    work[0] = 0
    return np.multiply(data, 2)


def falls(data):
    if len(data) < 20:
        slices(40)
    return data * 2


@dataclass(frozen=True)
class Hard:
    """A method, and its peak in units of a slice as a function of the number of slices."""

    function: Callable[..., Any]
    needs: Callable[[int], float]
    rising: bool = True

    def bytes(self, n):
        most = self.needs(n) if self.rising else max(self.needs(k) for k in range(1, n + 1))
        return int(most * SLICE_BYTES)

    def __str__(self):
        return self.function.__name__


HARD = [
    Hard(plain, lambda n: 2 * n),
    Hard(step_at_7, lambda n: 2 * n + 50 * (n >= 7)),
    Hard(two_slopes, lambda n: n + max(100, 2 * n)),
    Hard(large_fixed_cost, lambda n: 130 + 2 * n),
    Hard(chunks_of_16, lambda n: 2 * n + 3 * min(n, 16)),
    Hard(padded_to_16, lambda n: 2 * n + -(-n // 16) * 16),
    Hard(padded_to_power_of_two, lambda n: 2 * n + (1 << (n - 1).bit_length())),
    Hard(plan_cache, lambda n: 3 * n),
    Hard(growing_work_area, lambda n: 3 * n),
    Hard(constant, lambda n: 2 * n + 40),
    Hard(depends_on_data, lambda n: 3 * n),
    Hard(fails_at_1, lambda n: 2 * n),
    Hard(modifies_its_input, lambda n: 2 * n),
    Hard(quadratic, lambda n: 2 * n + n * n / 20),
    Hard(falls, lambda n: n + 40 if n < 20 else 2 * n, rising=False),
]
