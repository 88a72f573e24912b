"""Blocks of methods whose calls were timed when they were probed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from maxslices import ArraySpec
from maxslices.core.allocators import ArrayAllocator
from maxslices.core.memory_model import MemoryModel
from maxslices.estimate.probe_result import Probe
from maxslices.planner import Budgets, make_plan
from maxslices.planner.block_size import AUTO_SLICES, wanted_block
from maxslices.planner.section_model import SectionModel, StepModel
from tests.estimate.record_cases import PROBE

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
def test_blocks_are_large_enough_for_the_fixed_time_of_calls(call_s, slice_s, block):
    assert wanted_block("auto", cost(call_s, slice_s)) == block


@pytest.mark.parametrize(("n_workers", "block"), [(2, 32), (1, 128), (7, 32), (100, 10)])
def test_each_share_of_a_worker_has_four_blocks_of_slow_calls(n_workers, block):
    assert wanted_block("auto", cost(1, 3e-3), n_workers) == block


@pytest.mark.parametrize(
    ("slice_s", "halo", "note"),
    [
        (3.0, (0, 0), ""),
        (4.0, (0, 0), "1 h 10 min: 2.0 s for each of 100 blocks and 4.0 s for each of 1000 sl"),
        (3.0, (1, 1), "1 h 03 min: 2.0 s for each of 100 blocks and 3.0 s for each of 1200 sl"),
    ],
)
def test_a_plan_notes_methods_that_take_hours(slice_s, halo, note):
    budgets = Budgets("cuda", 2**40, 2**40)
    plan = make_plan([cost(2.0, slice_s, halo)], budgets, scan="a scan", block=10)
    assert len(plan.notes) == bool(note)
    assert note in "".join(plan.notes)


def probe(times):
    rungs = tuple(SimpleNamespace(n_slices=n, duration_s=9 + s, call_s=s) for n, s in times)
    return Probe(PROBE.peaks, (), rungs, 1, 1, True, 0.0)


def test_times_lie_on_a_line():
    call_s, slice_s = probe([(1, 52e-3), (33, 161e-3), (16, 100e-3), (55, 249e-3)]).pace_s()
    assert slice_s == pytest.approx(3.648e-3, rel=1e-3)
    assert call_s == pytest.approx(48.4e-3, rel=1e-2)
    assert probe([(4, 8e-3)]).pace_s() == (0.0, 2e-3)
    assert probe([(1, 9e-3), (4, 8e-3)]).pace_s()[1] == 0.0
    assert probe([]).pace_s() == (0.0, 0.0)
    compiled = probe([(3, 470e-3), (5, 103e-3), (8, 104e-3), (626, 5094e-3)]).pace_s()
    assert compiled == pytest.approx((79e-3, 8e-3), rel=1e-2)
