"""A real step in another process, on the CPU: what is sent there, and what comes back."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from maxslices.nn.fit.batch import make_step
from maxslices.nn.fit.real_step import RealSteps, _as_error, _ask
from maxslices.nn.replay import Spec
from maxslices.nn.replay.meta_copy import materialize, meta_copy
from maxslices.nn.replay.replay_step import StepLoop
from maxslices.nn.step import model_step
from maxslices.nn.step.model_step import run_step

from .networks import Small, Tied, half

CPU = torch.device("cpu")


def ask(model, shape=(2, 1, 16, 16), **options):
    given = {"mode": "inference", "optimizer": None, "loss": None, "targets": None, "amp": None}
    given |= {"prediction_function": None, **options}
    step = make_step(model, **given)
    trials = RealSteps(step, CPU, 10**9)
    inputs = (Spec(shape),)
    job = trials._job(inputs, step.target_specs(inputs), 0)
    return trials.in_process_reason if job is None else _ask(job)


@pytest.mark.parametrize(
    "options",
    [
        {"prediction_function": half},
        {"mode": "training", "optimizer": "adam", "loss": nn.BCEWithLogitsLoss()},
    ],
    ids=["inference", "training"],
)
def test_a_step_runs_in_another_process(options):
    assert ask(Small(), **options) == {"verdict": "ran"}


@pytest.mark.parametrize(
    ("taken", "steps"),
    [([3, 3, 3], 2), ([0, 5, 5, 5], 3), ([0, 5, 7, 7, 9, 9, 9, 12], 6), (range(99), 10)],
)
def test_real_steps_go_on_until_two_take_no_memory_from_the_device(monkeypatch, taken, steps):
    taken = iter(taken)
    monkeypatch.setattr(model_step, "_taken_bytes", lambda _device: next(taken))
    assert len(list(model_step._until_calm(torch.device("cuda", 0)))) == steps
    assert len(list(model_step._until_calm(CPU))) == 2


def test_an_optimizer_of_the_real_model_goes_along():
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = [p.clone() for p in model.parameters()]
    assert ask(model, mode="training", optimizer=optimizer) == {"verdict": "ran"}
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_what_the_model_raises_comes_back():
    error = _as_error(ask(Small(), (2, 1, 15, 16)))
    assert isinstance(error, RuntimeError)
    assert "Sizes of tensors must match" in str(error)


def test_what_another_process_cannot_know_is_said(monkeypatch):
    assert "cannot be sent" in ask(Small(), mode="training", loss=lambda y: y.sum())

    class Own(Small):
        pass

    Own.__module__, Own.__qualname__ = "__main__", "Own"
    monkeypatch.setattr(sys.modules["__main__"], "Own", Own, raising=False)
    assert "script or notebook" in ask(Own())


def test_a_copy_without_data_becomes_zeros_that_share_what_was_shared():
    made = meta_copy(Tied())
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    materialize(made, CPU, optimizer)
    assert made.first.weight is made.second.weight
    assert [p is made.first.weight for p in optimizer.param_groups[0]["params"]] == [True]
    assert made.order.tolist() == [0] * 8
    run_step(made, (torch.ones(2, 8),), StepLoop("training"), optimizer)
    assert made.first.weight.grad is not None
