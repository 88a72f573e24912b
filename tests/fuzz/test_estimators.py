"""Estimators that are not monotone: refused where a planned block depends on them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from maxslices import ArraySpec, Pipeline, Registry, method, plan
from maxslices.errors import EstimatorError

SPEC = ArraySpec((90, 256, 250), "float32")
SLICE_BYTES = 256 * 250 * 4
AVAILABLE = 60 * SLICE_BYTES


def hump(available, rng):
    """Fewer slices from some amount of memory on."""
    at = rng.randint(AVAILABLE // 3, AVAILABLE)
    n = available // (3 * SLICE_BYTES)
    return n if available < at else n // 2


def dip(available, rng):
    """Fewer slices within a range of amounts."""
    at = rng.randint(AVAILABLE // 3, AVAILABLE * 2 // 3)
    n = available // (3 * SLICE_BYTES)
    return max(1, n // 3) if at <= available < at + AVAILABLE // 8 else n


def saw(available, rng):
    """Alignment gone wrong: falls back at each step."""
    step = rng.randint(SLICE_BYTES, 5 * SLICE_BYTES)
    return max(0, available // (3 * SLICE_BYTES) - 4 * (available % step) // step)


def remainder(available, rng):
    """The rest of a division where the quotient was meant."""
    return available % rng.randint(AVAILABLE // 2, AVAILABLE) // (2 * SLICE_BYTES)


def falling(available, rng):
    """More memory, fewer slices, beyond some fixed costs."""
    fixed = rng.randint(SLICE_BYTES, 9 * SLICE_BYTES)
    return 0 if available < fixed else max(1, 60 - available // (2 * SLICE_BYTES))


SHAPES = (hump, dip, saw, remainder, falling)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES)
def test_an_estimator_that_rises_and_falls_is_refused(shape, seed):
    def calc_max_slices(slice_dim, other_dims, dtype, available_memory, device="cuda"):
        return shape(available_memory, random.Random(seed)), np.dtype("float32")

    registry = Registry()
    method("projection", calc_max_slices=calc_max_slices, registry=registry)(lambda_)
    with pytest.raises(EstimatorError, match=r"can never fit fewer slices|however much"):
        plan(SPEC, Pipeline.from_steps(["lambda_"], registry), device="cpu", memory=AVAILABLE)


def lambda_(data):
    return data


@pytest.mark.parametrize("seed", range(12))
def test_an_estimator_that_only_rises_is_never_refused(seed):
    rng = random.Random(seed)
    fixed, each = rng.randint(0, 5 * SLICE_BYTES), rng.randint(2, 5) * SLICE_BYTES
    granule = rng.choice((1, 3, 16))  # slices in packs

    def calc_max_slices(slice_dim, other_dims, dtype, available_memory, device="cuda"):
        n = max(0, available_memory - fixed) // each
        return n if n < granule else n // granule * granule, np.dtype("float32")

    registry = Registry()
    method("projection", calc_max_slices=calc_max_slices, registry=registry)(lambda_)
    made = plan(SPEC, Pipeline.from_steps(["lambda_"], registry), device="cpu", memory=AVAILABLE)
    assert made.sections[0].block > 0


def plan_with_needle(needle, **options):
    """Plan with an estimator that says no slice in a range of amounts, and the truth elsewhere."""

    def calc_max_slices(slice_dim, other_dims, dtype, available_memory, device="cuda"):
        n = available_memory // (3 * other_dims[0] * other_dims[1] * 4)
        return 0 if available_memory in needle else n, np.dtype("float32")

    registry = Registry()
    method("projection", calc_max_slices=calc_max_slices, registry=registry)(lambda_)
    made = plan(SPEC, Pipeline.from_steps(["lambda_"], registry), **options)
    return made


@pytest.mark.parametrize(
    "options",
    [
        {"device": "cpu", "memory": AVAILABLE, "block": 7},
        {"device": "cpu", "memory": AVAILABLE},
        {"device": "cuda", "memory": 2**30, "host_memory": 2**30, "block": 7},
    ],
)
def test_what_a_plan_leaves_for_a_block_is_asked_for_however_narrow_a_dip_is(options):
    (section,) = plan_with_needle(range(0), **options).sections
    assert section.block > 1
    free = section.available_bytes - section.estimated_bytes
    given = 3 * SLICE_BYTES * section.block + free
    plan_with_needle(range(given - 9, given), **options)
    with pytest.raises(EstimatorError, match="can never fit fewer slices"):
        plan_with_needle(range(given, given + 1), **options)
