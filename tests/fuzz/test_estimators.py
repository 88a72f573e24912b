"""Estimators that are not monotone: refused where a planned block depends on them."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices import ArraySpec, Pipeline, Registry, method, plan
from maxslices.errors import EstimatorError

SPEC = ArraySpec((90, 256, 250), "float32")
SLICE_BYTES = 256 * 250 * 4
AVAILABLE = 60 * SLICE_BYTES


def right(available):
    return available // (3 * SLICE_BYTES)


def plan_with(answer, **options):
    """Plan with an estimator that says how many slices fit in some bytes."""

    def calc_max_slices(slice_dim, other_dims, dtype, available_memory, device="cuda"):
        return answer(available_memory), np.dtype("float32")

    registry = Registry()
    method("projection", calc_max_slices=calc_max_slices, registry=registry)(same)
    options = options or {"device": "cpu", "memory": AVAILABLE}
    return plan(SPEC, Pipeline.from_steps(["same"], registry), **options)


def same(data):
    return data


FALLING = {
    "from some amount on": lambda a: right(a) if a < AVAILABLE // 2 else right(a) // 2,
    "within a range": lambda a: (
        max(1, right(a) // 3) if 0 <= a - AVAILABLE // 2 < AVAILABLE // 8 else right(a)
    ),
    "at each step of an alignment": lambda a: max(
        0, right(a) - 4 * (a % (3 * SLICE_BYTES)) // (3 * SLICE_BYTES)
    ),
    "a remainder for a quotient": lambda a: a % (AVAILABLE * 3 // 4) // (2 * SLICE_BYTES),
    "below the memory of one slice": lambda a: (
        20 if 0 <= a - 3 * SLICE_BYTES < SLICE_BYTES else max(0, right(a) - 3)
    ),
    "always": lambda a: 0 if a < 4 * SLICE_BYTES else max(1, 60 - a // (2 * SLICE_BYTES)),
}


@pytest.mark.parametrize("name", FALLING)
def test_an_estimator_that_falls_is_refused(name):
    with pytest.raises(EstimatorError, match=r"can never fit fewer slices|however much"):
        plan_with(FALLING[name])


@pytest.mark.parametrize("fixed", [0, 4])
@pytest.mark.parametrize("pack", [1, 3, 16])
def test_an_estimator_that_only_rises_is_never_refused(fixed, pack):
    def answer(available):
        n = right(max(0, available - fixed * SLICE_BYTES))
        return n if n < pack else n // pack * pack

    assert plan_with(answer).sections[0].block > 0


@pytest.mark.parametrize(
    "options",
    [
        {"device": "cpu", "memory": AVAILABLE, "block": 7},
        {"device": "cpu", "memory": AVAILABLE},
        {"device": "cuda", "memory": 2**30, "host_memory": 2**30, "block": 7},
    ],
)
def test_what_a_plan_leaves_for_a_block_is_asked_for_however_narrow_a_dip_is(options):
    (section,) = plan_with(right, **options).sections
    assert section.block > 1
    free = section.available_bytes - section.estimated_bytes
    offered = 3 * SLICE_BYTES * section.block + free
    plan_with(lambda a: 0 if offered - 9 <= a < offered else right(a), **options)
    with pytest.raises(EstimatorError, match="can never fit fewer slices"):
        plan_with(lambda a: 0 if a == offered else right(a), **options)
