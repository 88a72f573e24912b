"""Estimated work areas of cuFFT, compared with measured ones.

They were measured with CuPy 14.2 (CUDA 13) on an NVIDIA H200, 2026-11-21, in multiples of 512
bytes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.core.cufft import work_bytes

PLANS = [
    (kind, precision, tuple(dims), batch, n_bytes)
    for kind, precision, dims, batch, n_bytes in json.loads(
        (Path(__file__).parent / "cufft_plans.json").read_text()
    )
]
"""Measured plans: kind, precision, dims, batch, bytes. c2r plans took the same as r2c."""


def rounded(n_bytes: int) -> int:
    return -(-n_bytes // 512) * 512


def estimated(kind, precision, dims, batch):
    return rounded(work_bytes(batch, dims, kind, precision == "f4"))


def is_close(estimate, measured):
    """Return whether an estimate exceeds the measurement by at most 2 % or 2 KiB."""
    return estimate <= measured * 1.02 + 2048


def test_no_measured_work_area_is_larger_than_estimated():
    too_small = [(*plan, n) for *plan, n in PLANS if estimated(*plan) < n]
    assert len(PLANS) > 1100
    assert not too_small


def test_estimates_are_close_except_for_a_few_complex_plans():
    far = [(*plan, n) for *plan, n in PLANS if not is_close(estimated(*plan), n)]
    assert len(far) <= 0.033 * len(PLANS)
    for kind, precision, dims, batch, n_bytes in far:
        array_bytes = rounded(batch * math.prod(dims) * (8 if precision == "f4" else 16))
        assert (kind, n_bytes) == ("c2c", 0)
        assert estimated(kind, precision, dims, batch) == array_bytes


@pytest.mark.parametrize("plan", [row for row in PLANS if row[0] == "r2c"][::7])
def test_a_transform_back_to_real_needs_the_same(plan):
    _, precision, dims, batch, _ = plan
    assert estimated("c2r", precision, dims, batch) == estimated("r2c", precision, dims, batch)


@pytest.mark.parametrize(
    ("precision", "dims", "batch", "n_bytes"),
    [
        ("f4", (2360, 2760), 4, 104_293_376),  # two lengths, the first without a kernel
        ("f8", (2558,), 32, 1_310_720),  # half of it is the prime 1279
    ],
)
def test_padded_detectors(precision, dims, batch, n_bytes):
    estimate = estimated("r2c", precision, dims, batch)
    assert n_bytes <= estimate <= n_bytes + 2048


def test_rows_of_a_multiple_of_11_in_a_real_transform():
    measured = 30_370_000  # 30.36 MB: H200, CuPy 14.2, 2026-11-27
    assert measured <= estimated("r2c", "f4", (253, 500), 60) <= 1.01 * measured
    assert estimated("c2c", "f4", (253, 500), 60) == 0


@given(
    st.lists(st.integers(1, 9000), min_size=1, max_size=2),
    st.sampled_from(["c2c", "r2c", "c2r"]),
    st.booleans(),
    st.integers(1, 40),
)
def test_a_larger_batch_never_needs_less(dims, kind, single, batch):
    smaller, larger = (work_bytes(n, tuple(dims), kind, single) for n in (batch, batch + 1))
    assert 0 <= smaller <= larger


@pytest.mark.parametrize("dims", [(0,), (5, 0), (0, 5)])
@pytest.mark.parametrize("kind", ["c2c", "r2c", "c2r"])
def test_an_empty_plan_needs_nothing(kind, dims):
    assert work_bytes(3, dims, kind, True) == work_bytes(0, (2562,), kind, True) == 0
