"""Work memory of CuPy's calls, compared with peaks measured on an H200 (2026-11-28, CUDA 13)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from maxslices import Ledger
from maxslices.core.cuda_work import matmul_bytes, scan_bytes, sort_bytes
from maxslices.errors import UsageError

ROWS = json.loads((Path(__file__).parent / "cupy_calls.json").read_text())
SORTS = {"sort": -1, "sort0": 0, "argsort": -1, "median0": 0, "median-1": -1}
FACTORS = {
    "matvec": lambda s: (s, s[1:]),
    "matmul": lambda s: (s[:2], s[1:]),
    "matmul_many": lambda s: (s, (s[0], s[2], s[1])),
}


def rounded(n_bytes: float) -> int:
    return math.ceil(n_bytes / 512) * 512


def peak_bytes(call: str, dtype: str, shape: list[int], result_bytes: int) -> int:
    n_values, itemsize = math.prod(shape), np.dtype(dtype).itemsize
    if call.startswith(("median", "percentile")):  # the copy is larger than the result
        if call == "percentile0":  # its copy has that axis last
            shape = [*shape[1:], shape[0]]
        quantiles = 512 * call.startswith("percentile")
        work = sort_bytes(shape, dtype, SORTS.get(call, -1))
        return rounded(n_values * itemsize) + quantiles + work
    if call in SORTS:
        work = sort_bytes(shape, dtype, SORTS[call], indices=call == "argsort")
    elif call in FACTORS:
        work = matmul_bytes(*FACTORS[call](shape), dtype)
    else:
        flags = {"nonzero": 1, "mask": 5}.get(call, 0)
        work = scan_bytes(n_values) + rounded(flags * n_values) + 512 * (flags == 5)
    return rounded(result_bytes) + work


@pytest.mark.parametrize("call", sorted({row[0] for row in ROWS}))
def test_measured_calls_take_slightly_less_than_estimated(call):
    for name, dtype, shape, result_bytes, measured in ROWS:
        if name != call:
            continue
        estimated = peak_bytes(name, dtype, shape, result_bytes)
        data = 0 if call in FACTORS else math.prod(shape) * np.dtype(dtype).itemsize
        assert measured <= estimated, (dtype, shape)
        if math.prod(shape) >= 1_000_000:
            assert data + measured >= 0.95 * (data + estimated), (dtype, shape)


def test_work_memory_of_sorts_is_freed_and_zero_on_a_cpu():
    for device, work in (("cuda", sort_bytes((30, 400), "float32", 0)), ("cpu", 0)):
        with Ledger(device) as m:
            data = m.alloc((30, 400), "float32")
            m.sort((30, 400), "float32", axis=0)
        assert m.peak_bytes == data.n_bytes + work
        assert m.in_use_bytes == data.n_bytes


def test_empty_arrays_need_no_work_memory():
    assert sort_bytes((0, 5), "uint16") == scan_bytes(0) == 0


def test_a_missing_axis_is_refused():
    with pytest.raises(UsageError, match="no axis 2"):
        sort_bytes((3, 4), "uint16", axis=2)
