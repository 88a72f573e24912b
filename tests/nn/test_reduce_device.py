"""Steps that are run on a device: the CPU stands for one, and what it allocates is told."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.nn.reduce import times
from maxslices.nn.reduce.run_on_device import N_STEPS, N_WARM, run_for_real
from maxslices.nn.replay import Spec
from maxslices.nn.step.model_step import ModelStep, optimizer_named

SPEC = Spec((2, 3, 16, 16))
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
    made = model()
    before = [p.detach().clone() for p in made.parameters()]
    step = ModelStep(made, "training", optimizer_named("adam"))
    calls = []
    made[0].register_forward_hook(lambda *_: calls.append(fractions[-1]))
    found = run_for_real(step, [SPEC], torch.device("cpu"), 4300)
    assert (found.allocated_bytes, found.reserved_bytes) == (1000, 2000)
    assert found.step_s > 0
    assert N_STEPS[0] <= len(calls) <= N_STEPS[1] + N_WARM
    assert set(calls) == {(4300 + HELD) / TOTAL}
    assert fractions[-1] == 1.0
    for a, b in zip(before, made.parameters(), strict=True):
        assert torch.equal(a, b)
        assert b.grad is None


def test_where_memory_runs_out_nothing_is_found_and_the_limit_is_taken_back(fractions):
    class Greedy(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    step = ModelStep(nn.Sequential(Greedy(3, 3, 3)), "training")
    assert run_for_real(step, [SPEC], torch.device("cpu"), 4300) is None
    assert fractions == [1.0, (4300 + HELD) / TOTAL, 1.0]


def test_spans_of_modules_lie_inside_of_those_around_them():
    network = model()
    spans = times.record_spans(network, count().__next__)
    network(torch.zeros(SPEC.shape))
    ticks = {path: end - begin for path, begin, end in spans}
    assert ticks == {"": 15, "0": 5, "0.0": 1, "0.1": 1, "1": 5, "1.0": 1, "1.1": 1, "2": 1}
