"""Real steps of a copy of a model, on the CPU."""

from __future__ import annotations

from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from maxslices.nn.fit.largest import make_step
from maxslices.nn.fit.real_step import run_copy
from maxslices.nn.replay import Spec
from maxslices.nn.replay.meta_copy import materialize, meta_copy
from maxslices.nn.replay.replay_step import StepLoop
from maxslices.nn.step.model_step import run_step, until_no_new_reservation

from .networks import Small, Tied, half

CPU = torch.device("cpu")


def run(model, shape=(2, 1, 16, 16), mode="inference", optimizer=None, loss=None, function=None):
    step = make_step(model, mode, optimizer, loss, None, None, function)
    run_copy(step, (Spec(shape),), CPU)


class Counted(Small):
    """Counts calls of itself and of all its copies."""

    calls: ClassVar[list[bool]] = []

    def forward(self, x):
        self.calls.append(self.training)
        return super().forward(x)


@pytest.mark.parametrize(
    "options",
    [{"function": half}, {"mode": "training", "optimizer": "adam", "loss": nn.BCEWithLogitsLoss()}],
    ids=["inference", "training"],
)
def test_as_many_steps_run_as_are_replayed(options):
    del Counted.calls[:]
    model = Counted()
    run(model, **options)
    # Two halves of each of two passes, or two steps after a replay for the targets' shape.
    assert Counted.calls == ([False] * 4 if "function" in options else [True] * 3)
    assert model.training


@pytest.mark.parametrize(
    ("taken", "steps"),
    [([3, 3, 3], 2), ([0, 5, 5, 5], 3), ([0, 5, 7, 7, 9, 9, 9, 12], 6), (range(99), 10)],
)
def test_real_steps_end_after_two_that_take_no_memory_from_the_device(taken, steps):
    taken = iter(taken)
    assert len(list(until_no_new_reservation(lambda: next(taken)))) == steps


def test_the_real_model_and_its_optimizer_are_unchanged():
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = [p.clone() for p in model.parameters()]
    run(model, mode="training", optimizer=optimizer)
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_errors_of_the_copy_are_raised():
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        run(Small(), (2, 1, 15, 16))


def test_a_copy_without_data_becomes_zeros_that_share_what_was_shared():
    copy = meta_copy(Tied())
    optimizer = torch.optim.SGD(copy.parameters(), lr=0.1)
    materialize(copy, CPU, optimizer)
    assert copy.first.weight is copy.second.weight
    assert [p is copy.first.weight for p in optimizer.param_groups[0]["params"]] == [True]
    assert copy.order.tolist() == [0] * 8
    run_step(copy, (torch.ones(2, 8),), StepLoop("training"), optimizer)
    assert copy.first.weight.grad is not None
