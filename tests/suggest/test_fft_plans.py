"""Plans of a made-up cufft module are noted, and become lines of a ledger."""

from __future__ import annotations

import sys
import types

import pytest

from maxslices.suggest.alloc_call import SizeFinder
from maxslices.suggest.dim_expressions import Blocks
from maxslices.suggest.fft_plans import plan_lines, plans_noted

from .test_alloc_call import SHAPES

C2C, R2C = 0x29, 0x2A


@pytest.fixture
def cufft(monkeypatch):
    class Plan1d:
        def __init__(self, nx, fft_type, batch, *, devices=None, out=None):
            events.append("workspace")

    class PlanNd:
        def __init__(self, shape, inembed, istride, idist, onembed, ostride, odist, *rest):
            events.append("workspace")

    events: list[str] = []
    module = types.ModuleType("cupy.cuda.cufft")
    module.Plan1d, module.PlanNd, module.events = Plan1d, PlanNd, events
    monkeypatch.setitem(sys.modules, "cupy.cuda.cufft", module)
    return module


def test_plans_are_noted_with_what_they_allocate(cufft):
    original = cufft.Plan1d
    with plans_noted(lambda: len(cufft.events)) as plans:
        cufft.events.append("array")
        plan = cufft.Plan1d(109, R2C, 50)
        cufft.PlanNd((64, 33), None, 1, 1, None, 1, 1, C2C, 7, "C", 1, None)
    assert isinstance(plan, original)
    assert cufft.Plan1d is original
    first, second = plans
    assert (first.start, first.stop, first.dims, first.batch) == (1, 2, (109,), 50)
    assert (first.kind, first.is_single) == ("r2c", True)
    assert (second.start, second.stop, second.dims, second.batch) == (2, 3, (64, 33), 7)


def test_plans_of_all_runs_become_lines(cufft):
    runs = []
    for n, r, c in SHAPES:
        with plans_noted(lambda: 0) as plans:
            for batch in [n * r] + [3] * (n % 2):  # a rest, in some runs
                cufft.Plan1d(c + c % 2, R2C, batch)
        runs.append(plans)
    above, line = plan_lines(runs, SizeFinder(Blocks(SHAPES, 0)))
    assert above == "# cufft.Plan1d(c + c % 2, R2C, batch)"
    assert line == 'm.fft((angles, rows, columns + columns % 2), "float32", axes=(2,), kind="r2c")'


def test_a_long_call_is_written_whole(cufft):
    runs = []
    for n, r, c in SHAPES:
        with plans_noted(lambda: 0) as plans:
            lengths = [1 << (k + 30).bit_length() for k in (r, c)]
            cufft.PlanNd(lengths, None, 1, 1, None, 1, 1, C2C, n, "C", 1, None)
        runs.append(plans)
    _, line = plan_lines(runs, SizeFinder(Blocks(SHAPES, 0)))
    assert len(line) > 99
    compile(line, "line", "eval")
