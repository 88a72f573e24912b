"""Where there is a device, several plans are run on it, and the fastest that fits is taken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from maxslices.nn.errors import TooLargeError  # noqa: E402
from maxslices.nn.memory import CONTEXT_BYTES, Budget  # noqa: E402
from maxslices.nn.reduce import api, confirm, plans, reduce_memory, search  # noqa: E402
from maxslices.nn.reduce.device import Measured  # noqa: E402
from maxslices.nn.reduce.times import Rates, Times  # noqa: E402
from maxslices.nn.step import Step  # noqa: E402
from maxslices.tracing import Spec, WorkAreas  # noqa: E402

SPEC = Spec((8, 3, 96, 96))


def model() -> nn.Sequential:
    torch.manual_seed(1)
    blocks = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU())
        for _ in range(6)
    ]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.Conv2d(16, 1, 1))


@pytest.fixture
def device(monkeypatch):
    """A device that is not there: what runs on it is told by the test."""
    place = torch.device("cuda", 0)
    monkeypatch.setattr(api, "device_of", lambda *_: place)
    monkeypatch.setattr(
        api,
        "budget_of",
        lambda _m, _p, memory: Budget(memory - CONTEXT_BYTES, "as asked for", None),
    )
    monkeypatch.setattr(api, "measured_areas", lambda *_: (WorkAreas.allowance(), 0.0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**40, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)

    def measure(step, _inputs, _place, parts=1):
        rates = Rates.stated(None)
        times = {path: 1e-3 for path, _ in step.model.named_modules()} | {"": 8e-3 * parts**0.5}
        host = dict.fromkeys(times, 0.0002) | {"": 2e-3 * parts}
        return Times(rates, times, host, "told by a test")

    monkeypatch.setattr(plans, "measure", measure)
    ran = []

    def run(step, inputs, _place, limit_bytes=None):
        plan = {
            path: module.__dict__["forward"].__class__.__name__
            for path, module in step.model.named_modules()
            if "forward" in module.__dict__
        }
        trace = step.trace(inputs, WorkAreas.allowance())
        ran.append((plan, limit_bytes, trace.allocated_bytes))
        return run.told(len(ran), trace, limit_bytes)

    monkeypatch.setattr(confirm, "run_for_real", run)
    return run, ran


def peak() -> int:
    return (
        Step(model(), "training", torch.optim.Adam).trace([SPEC], WorkAreas.allowance()).peak_bytes
    )


def test_the_fastest_of_several_plans_is_taken(device):
    run, ran = device
    run.told = lambda n, trace, _limit: Measured(trace.allocated_bytes, 0, 1.0 / n)
    made = model()
    _, summary = reduce_memory(made, SPEC, int(0.6 * peak()) + CONTEXT_BYTES)
    limited = [each for each in ran if each[1] is not None]
    # The unreduced step is first: what runs under a limit makes cuDNN choose slower kernels.
    assert ran[0][:2] == ({}, None)
    assert len(limited) == len(ran) - 1 >= 2
    assert len({str(plan) for plan, _, _ in limited}) >= 2  # and they differ
    # The last was the fastest, by what the test told: that one is left in the model.
    assert summary.measured_after_bytes == limited[-1][2] == summary.peak_after_bytes
    treated = {path for path, m in made.named_modules() if "forward" in m.__dict__}
    assert treated == set(limited[-1][0])
    assert summary.measured_step_s == 1.0 / len(ran)
    assert summary.measured_step_before_s == 1.0
    assert summary.predicted_step_s == pytest.approx(
        summary.measured_step_before_s + summary.predicted_added_s
    )


def test_a_plan_that_runs_out_of_memory_is_passed_over(device):
    run, ran = device
    run.told = lambda n, trace, _limit: Measured(trace.allocated_bytes, 0, 1.0) if n > 2 else None
    _, summary = reduce_memory(model(), SPEC, int(0.6 * peak()) + CONTEXT_BYTES)
    assert summary.measured_after_bytes in [size for _, limit, size in ran[2:] if limit]


def test_where_no_plan_runs_the_model_is_left_as_it_was(device):
    run, _ran = device
    run.told = lambda *_: None
    made = model()
    with pytest.raises(TooLargeError, match="did not run within"):
        reduce_memory(made, SPEC, int(0.6 * peak()) + CONTEXT_BYTES)
    assert not any("forward" in m.__dict__ for m in made.modules())


def test_plans_are_made_for_the_limit_a_little_more_and_a_little_less(device, monkeypatch):
    run, _ran = device
    run.told = lambda _n, trace, _limit: Measured(trace.allocated_bytes, 0, 1.0)
    limits, find = [], search.Searcher.find

    def noted(searcher, *args):
        limits.append(searcher.limit_bytes)
        return find(searcher, *args)

    monkeypatch.setattr(search.Searcher, "find", noted)
    limit = int(0.6 * peak())
    reduce_memory(model(), SPEC, limit + CONTEXT_BYTES)
    first, *others = dict.fromkeys(limits)
    assert first == limit
    # What is needed may be a little less than predicted; close to the limit steps are slower.
    assert sorted(others) == [int(0.92 * limit), int(1.015 * limit)]


def test_what_needs_more_than_the_limit_is_run_last_and_what_needs_too_much_not_at_all():
    def plan(path: str, needed: int, added_s: float) -> SimpleNamespace:
        chosen = [SimpleNamespace(path=path, treatment="checkpoint")]
        trace = SimpleNamespace(allocated_bytes=900)
        return SimpleNamespace(chosen=chosen, trace=trace, needed_bytes=needed, added_s=added_s)

    fine, close, hopeless = plan("a", 950, 3.0), plan("b", 1010, 2.0), plan("c", 1030, 1.0)
    searcher = SimpleNamespace(limit_bytes=1000, tried=[hopeless, fine, close])
    assert confirm.finalists(searcher, fine) == [fine, close]
    roomy = plan("d", 900, 4.0)
    searcher.tried += [roomy]
    assert confirm.finalists(searcher, fine) == [fine, roomy, close]
    searcher.tried = [hopeless]  # there is nothing else
    assert confirm.finalists(searcher, hopeless) == [hopeless]


def test_plans_with_room_are_among_those_that_run(device):
    run, ran = device
    run.told = lambda _n, trace, _limit: Measured(trace.allocated_bytes, 0, 1.0)
    limit = int(0.6 * peak())
    reduce_memory(model(), SPEC, limit + CONTEXT_BYTES)
    sizes = [size for _, limited, size in ran if limited]
    assert min(sizes) <= 0.92 * limit
