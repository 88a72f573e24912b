"""Blocks of methods that process several slices together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maxslices import ArraySpec, Pipeline, Registry
from maxslices.api.plan_scan import plan_pipeline
from maxslices.block_effect.effect import BlockEffect
from maxslices.estimate import ModelResolver
from maxslices.pipeline import ScanSpec
from maxslices.planner import Budgets
from maxslices.runner.section_run import _halved
from tests.planner.ledgers import two

SLICE = 1200 * 2  # bytes of a slice of 30x40 uint16


class Paired(ModelResolver):
    """Resolver for which all methods process two slices together."""

    multiple, least = 2, 1

    def resolve(self, request):
        seen = BlockEffect(16, 5, 0.1, agree_from=self.least, multiple=self.multiple)
        return replace(super().resolve(request), blocks=seen)


def planned(n_slices, block="auto", budget=10**9, halo=0, resolver=Paired):
    registry = Registry()
    registry.register(lambda data: data, name="pairs", module="lab", pattern="projection",
                      calc_max_slices=two, halo=halo)  # fmt: skip
    scan = ScanSpec(ArraySpec((n_slices, 30, 40), "uint16"), in_memory=True)
    steps = Pipeline.from_steps(["pairs"], registry)
    budgets = Budgets("cuda", budget, 10**9)
    plan = plan_pipeline(steps, scan, budgets, resolver(budgets.kind), block=block)
    return plan.sections[0]


@pytest.mark.parametrize(
    ("n_slices", "block"), [(1024, 32), (1023, 32), (33 * 32 - 1, 34), (63, 32), (31, 31)]
)
def test_blocks_are_even_but_the_last(n_slices, block):
    section = planned(n_slices)
    assert section.block % 2 == 0 or section.block == n_slices
    assert abs(section.block - block) <= 2
    assert section.multiple == 2
    assert "a multiple of 2, because other blocks give another result" in section.why


@pytest.mark.parametrize("budget", [k * 4 * SLICE for k in range(9, 21)])
def test_blocks_are_even_where_memory_is_short(budget):
    section = planned(1000, budget=budget)
    assert section.block <= section.max_block
    assert section.block % 2 == 0


def test_the_block_of_the_user_is_used_with_a_warning():
    section = planned(1000, block=31)
    assert section.block == 31
    assert "blocks that are not a multiple of 2 give another result" in section.why


def test_a_least_size_is_kept_as_well():
    class FromTen(Paired):
        multiple, least = 2, 10

    section = planned(101, budget=90 * SLICE, resolver=FromTen)
    assert section.block % 2 == 0
    assert section.block >= 10
    assert (section.n_slices % section.block or section.block) >= 10


def test_a_halo_that_shifts_blocks_leaves_no_multiple():
    assert planned(1000, halo=(3, 3)).multiple == 1
    assert planned(1000, halo=(4, 3)).multiple == 2


@pytest.mark.parametrize(
    ("size", "multiple", "half"),
    [(32, 2, 16), (14, 2, 8), (6, 4, 4), (4, 4, 2), (2, 2, 1), (7, 1, 4)],
)
def test_half_a_block_is_a_multiple_too(size, multiple, half):
    assert _halved(size, multiple) == half
