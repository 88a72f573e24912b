"""Blocks of methods whose calls were timed when they were probed."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from maxslices import ArraySpec, Pipeline, Registry, from_ledger
from maxslices.api.plan_scan import plan_pipeline
from maxslices.estimate.probe_result import Probe
from maxslices.model.allocators import ArrayAllocator
from maxslices.model.memory_model import MemoryModel
from maxslices.model.section_model import SectionModel, StepModel
from maxslices.pipeline import ScanSpec
from maxslices.planner import Budgets
from maxslices.planner.block_size import AUTO_SLICES, FIRST_SLICES, wanted_block
from maxslices.runner.block_ranges import blocks_of
from tests.planner.ledgers import two

TOTAL = 1000


def cost(call_s, slice_s, halo=(0, 0)):
    array = ArraySpec((1801, TOTAL, 2560), "float32")  # 18 MB a sinogram: 0.92 ms at 20 GB/s
    step = StepModel(
        index=0,
        method="lab.method",
        parameters={},
        input=array,
        output=array,
        memory=MemoryModel.linear(0, 1),
        estimator="probed",
        pace_s=(call_s, slice_s),
    )
    return SectionModel(1, halo, (step,), MemoryModel.linear(0, 0), ArrayAllocator("cuda"))


@pytest.mark.parametrize(
    ("call_s", "slice_s", "block"),
    [
        (0, 0, AUTO_SLICES),  # nothing is known
        (1e-3, 3e-3, AUTO_SLICES),
        (15e-3, 3e-3, 128),
        (1, 3e-3, 128),  # at least four blocks are left
        (1e-2, 1e-4, AUTO_SLICES),  # waits for the link in any case
    ],
)
def test_a_call_takes_little_beside_its_slices(call_s, slice_s, block):
    assert wanted_block("auto", cost(call_s, slice_s)) == block


@from_ledger
def _with_plan(m, shape, dtype):
    m.alloc(shape, dtype)
    m.fft((*shape[:2], 2560), "float32", (2,), "r2c")
    m.alloc(shape, dtype)


registry = Registry()
for name, estimator, halo in (("same", two, 0), ("wide", two, 1), ("plans", _with_plan, 0)):

    def same(data):
        return data.copy()

    same.__name__ = name
    registry.register(same, pattern="projection", calc_max_slices=estimator, halo=halo)


def section_of(*steps, n_slices=1024, **kwargs):
    budget = kwargs.pop("budget", 10**9)
    in_memory = kwargs.pop("in_memory", True)
    scan = ScanSpec(ArraySpec((n_slices, 30, 40), "uint16"), in_memory=in_memory)
    limits = Budgets("cuda", budget, 10**9)
    return plan_pipeline(Pipeline.from_steps(steps, registry), scan, limits, **kwargs).sections[0]


def first_of(*steps, **kwargs):
    section = section_of(*steps, **kwargs)
    return section.first_blocks, section.block


def test_a_plan_counts_the_first_blocks_and_names_them():
    section = section_of("same")
    blocks = blocks_of(0, 1024, 32, (0, 0), section.first_blocks)
    assert section.n_blocks == len(blocks) == 7 + 29
    assert section.why.endswith("; 7, 7, 9, 12, 16, 20, 25 to begin with")
    assert section_of("same", block=32).n_blocks == 32
    assert section_of("same", block=33).n_blocks == 32
    assert section_of("same", block=31).n_blocks == 34
    assert section_of("same", block=np.uint8(31)).n_blocks == 34


@pytest.mark.parametrize("n_slices", [256, 1024, 1801, 4000])
def test_the_first_blocks_are_smaller(n_slices):
    firsts, block = first_of("same", n_slices=n_slices)
    assert FIRST_SLICES <= firsts[0] <= 2 * FIRST_SLICES
    assert sum(firsts) % block == 0
    assert all(a <= b <= 4 * a / 3 + 1 for a, b in pairwise([*firsts, block]))


def test_all_blocks_are_of_one_size_where_smaller_ones_cost_more_than_they_gain():
    assert first_of("same")[0]
    assert not first_of("same", block=32)[0]  # as asked for
    assert not first_of("same", n_slices=255)[0]  # too few
    assert not first_of("same", in_memory=False)[0]  # read ahead
    assert not first_of("wide")[0]  # a halo is computed again each time
    assert not first_of("plans")[0]  # FFT plans are made for each size
    assert first_of("same", budget=10**6) == ((), 32)  # no room for what they leave behind


def probe(times):
    rungs = tuple(SimpleNamespace(n_slices=n, duration_s=9 + s, call_s=s) for n, s in times)
    return Probe(((1, 1),), (), 0, rungs, 1, 1, 1, True, 0.0)


def test_times_lie_on_a_line():
    call_s, slice_s = probe([(1, 52e-3), (33, 161e-3), (16, 100e-3), (55, 249e-3)]).pace_s()
    assert slice_s == pytest.approx(3.648e-3, rel=1e-3)
    assert call_s == pytest.approx(48.4e-3, rel=1e-2)
    assert probe([(4, 8e-3)]).pace_s() == (0.0, 2e-3)
    assert probe([(1, 9e-3), (4, 8e-3)]).pace_s()[1] == 0.0
    assert probe([]).pace_s() == (0.0, 0.0)
