"""Blocks of methods whose calls were timed when they were probed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from maxslices import ArraySpec
from maxslices.estimators.probe_result import Probe
from maxslices.planner.blocks import AUTO_SLICES, wanted_block

TOTAL = 1000


def cost(call_s, slice_s, halo=(0, 0)):
    array = ArraySpec((1801, TOTAL, 2560), "float32")  # 18 MB a sinogram: 0.92 ms at 20 GB/s
    section = SimpleNamespace(slice_dim=1, halo=halo)
    pace_s = (call_s, slice_s)
    return SimpleNamespace(
        n_slices=TOTAL, section=section, input=array, output=array, pace_s=pace_s
    )


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


def probe(times):
    rungs = tuple(SimpleNamespace(n_slices=n, duration_s=s) for n, s in times)
    return Probe(((1, 1),), (), 0, rungs, 1, 1, 1, True, 0.0)


def test_times_lie_on_a_line():
    call_s, slice_s = probe([(1, 52e-3), (33, 161e-3), (16, 100e-3), (55, 249e-3)]).pace_s()
    assert slice_s == pytest.approx(3.648e-3, rel=1e-3)
    assert call_s == pytest.approx(48.4e-3, rel=1e-2)
    assert probe([(4, 8e-3)]).pace_s() == (0.0, 2e-3)
    assert probe([(1, 9e-3), (4, 8e-3)]).pace_s()[1] == 0.0
    assert probe([]).pace_s() == (0.0, 0.0)
