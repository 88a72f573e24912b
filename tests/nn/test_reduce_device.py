"""Steps of plans on a device, which the CPU or a function of the test represents."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import count

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.memory_budget import MemoryBudget
from maxslices.nn.nn_errors import TooLargeError
from maxslices.nn.reduce import reduce_memory, reduction, run_on_device, search, times
from maxslices.nn.reduce.run_on_device import N_STEPS, N_WARM, MeasuredStep, run_for_real
from maxslices.nn.reduce.times import DeviceRates, ForwardTimes
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.replay.workspaces import CONVOLUTIONS
from maxslices.nn.step.model_step import ModelStep, optimizer_named

SPEC = Spec((2, 3, 16, 16))
IMAGES = Spec((8, 3, 96, 96))
HELD, TOTAL = 700, 10_000


def model() -> nn.Sequential:
    blocks = [nn.Sequential(nn.Conv2d(n, 8, 3, padding=1), nn.GELU()) for n in (3, 8)]
    return nn.Sequential(*blocks, nn.Conv2d(8, 1, 1))


@pytest.fixture
def fractions(monkeypatch):
    """Return parts of the device's memory that torch was allowed, in order."""
    allowed = [1.0]
    stand_ins = {
        "synchronize": lambda device: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device: None,
        "memory_allocated": lambda device: 300,
        "max_memory_allocated": lambda device: 1300,
        "memory_reserved": lambda device: HELD,
        "max_memory_reserved": lambda device: HELD + 2000,
        "mem_get_info": lambda device: (TOTAL - HELD, TOTAL),
        "get_per_process_memory_fraction": lambda device: allowed[-1],
        "set_per_process_memory_fraction": lambda part, device: allowed.append(part),
        "device": lambda device: nullcontext(),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in, raising=False)  # torch 2.6 has not all
    return allowed


def test_steps_are_run_on_a_copy_within_the_limit(fractions):
    network = model()
    before = [p.detach().clone() for p in network.parameters()]
    step = ModelStep(network, "training", optimizer_named("adam"))
    calls = []
    network[0].register_forward_hook(lambda *_: calls.append(fractions[-1]))
    measured = run_for_real(step, [SPEC], torch.device("cpu"), 4300)
    assert (measured.allocated_bytes, measured.reserved_bytes) == (1000, 2000)
    assert measured.step_s > 0
    assert N_STEPS[0] <= len(calls) <= N_STEPS[1] + N_WARM
    assert set(calls) == {(4300 + HELD) / TOTAL}
    assert fractions[-1] == 1.0
    for a, b in zip(before, network.parameters(), strict=True):
        assert torch.equal(a, b)
        assert b.grad is None


def test_out_of_memory_returns_none_and_resets_the_limit(fractions):
    class Greedy(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    step = ModelStep(nn.Sequential(Greedy(3, 3, 3)), "training")
    assert run_for_real(step, [SPEC], torch.device("cpu"), 4300) is None
    assert fractions == [1.0, (4300 + HELD) / TOTAL, 1.0]


def test_spans_of_modules_are_nested():
    network = model()
    spans = times.record_spans(network, count().__next__)
    network(torch.zeros(SPEC.shape))
    ticks = {path: end - begin for path, begin, end in spans}
    assert ticks == {"": 15, "0": 5, "0.0": 1, "0.1": 1, "1": 5, "1.0": 1, "1.1": 1, "2": 1}


def blocks_of_layers() -> nn.Sequential:
    torch.manual_seed(1)
    blocks = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU())
        for _ in range(6)
    ]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.Conv2d(16, 1, 1))


@pytest.fixture
def device(monkeypatch):
    """A device that does not exist, whose runs are answered by the test."""
    place = torch.device("cuda", 0)
    monkeypatch.setattr(reduction, "device_of", lambda *_: place)
    monkeypatch.setattr(
        reduction,
        "budget_of",
        lambda _m, _p, memory: MemoryBudget(memory - CONTEXT_BYTES, "as asked for", None),
    )
    monkeypatch.setattr(search, "measured_workspaces", lambda *_: (Workspaces.allowance(), 0.0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**40, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)

    def measure_times(step, _inputs, _place):
        rates = DeviceRates.stated(None)
        times = {path: 1e-3 for path, _ in step.model.named_modules()} | {"": 8e-3}
        host = dict.fromkeys(times, 0.0002) | {"": 2e-3}
        return ForwardTimes(rates, times, host, "by a test")

    monkeypatch.setattr(search, "measure_times", measure_times)
    ran = []

    def run(step, inputs, _place, limit_bytes=None):
        plan = {
            path: module.__dict__["forward"].__class__.__name__
            for path, module in step.model.named_modules()
            if "forward" in module.__dict__
        }
        trace = step.trace(inputs, Workspaces.allowance())
        ran.append((plan, limit_bytes, trace.allocated_bytes))
        return run.answer(len(ran), trace, limit_bytes)

    monkeypatch.setattr(run_on_device, "run_for_real", run)
    return run, ran


def peak() -> int:
    return (
        ModelStep(blocks_of_layers(), "training", torch.optim.Adam)
        .trace([IMAGES], Workspaces.allowance())
        .peak_bytes
    )


def test_the_fastest_of_several_plans_is_taken(device):
    run, ran = device
    run.answer = lambda n, trace, _limit: MeasuredStep(trace.allocated_bytes, 0, 1.0 / n)
    network = blocks_of_layers()
    _, summary = reduce_memory(network, IMAGES, int(0.75 * peak()) + CONTEXT_BYTES)
    limited = [each for each in ran if each[1] is not None]
    # The unreduced step is first: what runs under a limit makes cuDNN choose slower kernels.
    assert ran[0][:2] == ({}, None)
    assert len(limited) == len(ran) - 1 >= 2
    assert len({str(plan) for plan, _, _ in limited}) >= 2  # and they differ
    # The last run was the fastest, so its plan stays in the model.
    assert summary.measured_after_bytes == limited[-1][2] == summary.peak_after_bytes
    rewritten = {path for path, m in network.named_modules() if "forward" in m.__dict__}
    assert rewritten == set(limited[-1][0])
    assert summary.measured_step_s == 1.0 / len(ran)
    assert summary.measured_step_before_s == 1.0
    assert summary.predicted_step_s == pytest.approx(
        summary.measured_step_before_s + summary.predicted_added_s
    )


class OneStage(nn.Module):
    """Two wide convolutions, whose workspaces are most of the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def test_parts_of_a_batch_have_the_workspaces_that_the_device_measures_for_them(
    device, monkeypatch
):
    run, _ran = device
    run.answer = lambda _n, trace, _limit: MeasuredStep(trace.allocated_bytes, 0, 1.0)
    true, sizes = Workspaces.allowance(), {}

    def measured(calls, _device):
        """Each convolution is measured at its own batch, as on a card."""
        for call in calls:
            if call.kind in CONVOLUTIONS:
                points = sizes.setdefault(call.signature, {})
                points[call.batch] = true.for_op(call)
        table = {key: tuple(sorted(points.items())) for key, points in sizes.items()}
        return replace(true, table=table), 0.0

    monkeypatch.setattr(search, "measured_workspaces", measured)
    spec = Spec((16, 64, 64, 64))
    whole = ModelStep(OneStage(), "training", torch.optim.Adam).trace([spec], true)
    limit = int(0.85 * whole.peak_bytes) + CONTEXT_BYTES
    _, summary = reduce_memory(OneStage(), spec, limit)
    assert any(rewrite.parts > 1 for rewrite in summary.rewrites.values())
    # With the workspace of the whole batch, parts were predicted 37 % too high.
    assert summary.peak_after_bytes == summary.measured_after_bytes


def test_a_plan_that_runs_out_of_memory_is_passed_over(device):
    run, ran = device
    run.answer = lambda n, trace, _limit: (
        MeasuredStep(trace.allocated_bytes, 0, 1.0) if n > 2 else None
    )
    _, summary = reduce_memory(blocks_of_layers(), IMAGES, int(0.75 * peak()) + CONTEXT_BYTES)
    assert summary.measured_after_bytes in [size for _, limit, size in ran[2:] if limit]


def test_a_model_is_unchanged_if_no_plan_runs(device):
    run, _ran = device
    run.answer = lambda *_: None
    network = blocks_of_layers()
    with pytest.raises(TooLargeError, match="did not run within"):
        reduce_memory(network, IMAGES, int(0.75 * peak()) + CONTEXT_BYTES)
    assert not any("forward" in m.__dict__ for m in network.modules())
