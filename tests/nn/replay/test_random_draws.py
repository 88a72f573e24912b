"""A replay takes no random numbers from the program."""

# ruff: noqa: NPY002 - the generator that all share is what is tested
from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.nn.replay import Spec, replay


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


class Draws(nn.Module):
    def forward(self, x):
        return x * sum(drawn())


def test_a_replay_takes_none():
    def seed():
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)

    seed()
    expected = drawn()
    seed()
    replay(Draws(), Spec((2, 4)))
    assert drawn() == expected
