"""What a search runs for real: models that may make zeros and ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.nn_errors import TooLargeError
from maxslices.nn.reduce import reduce_memory
from maxslices.nn.reduce.binary_inputs import may_be_binary
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep

SPEC = Spec((4, 3, 64, 64))


class Spike(torch.autograd.Function):
    """A step forwards, and the identity backwards."""

    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Between(nn.Module):
    """Two convolutions with a function in between; notes calls with data."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 4, 3)
        self.function = function
        self.runs: list[torch.Size] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "meta":
            self.runs.append(x.shape)
        return self.second(self.function(self.first(x)))


STEPS = {
    "function of one's own": Spike.apply,
    "comparison": lambda x: (x > 0) * 1.0,
    "choice": lambda x: torch.where(x > 0, 1.0, 0.0),
    "random": lambda x: torch.bernoulli(x.sigmoid()),
}
SMOOTH = {
    "ReLU": torch.relu,
    "mask of positions": lambda x: x.masked_fill(torch.arange(x.shape[-1]) != 3, 0.0),
}


@pytest.mark.parametrize("name", [*STEPS, *SMOOTH])
def test_zeros_and_ones_are_looked_for_where_a_step_may_make_them(name):
    model = Between((STEPS | SMOOTH)[name])
    step = ModelStep(model, "training", torch.optim.Adam)
    assert may_be_binary(model, step.trace([SPEC], Workspaces.none())) == (name in STEPS)


def test_a_model_without_steps_is_not_run():
    model = Between(torch.relu)
    step = ModelStep(model, "training", torch.optim.Adam)
    peak = step.trace([SPEC], Workspaces.allowance()).peak_bytes
    limit = int(0.8 * peak) + CONTEXT_BYTES
    with suppress(TooLargeError):
        reduce_memory(model, SPEC, limit, means=("pack", "checkpoint"))
    assert not model.runs
