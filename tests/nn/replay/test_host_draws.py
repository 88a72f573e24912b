"""Random numbers of Python and NumPy: drawn again, and not taken from the program."""

# ruff: noqa: NPY002 - the generator that all share is what is tested
from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.nn.replay import Spec, replay
from maxslices.nn.replay.host_draws import HostDraws, seeded_host_draws


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), _normal()


def _normal() -> float:
    return float(np.random.randn())


@pytest.mark.parametrize("draw", [drawn, random.random, _normal])
def test_they_are_drawn_again_and_go_on_from_where_they_were(draw):
    before = HostDraws()
    first = draw()
    before.drop_unchanged()
    later = HostDraws()
    with before.again():
        assert draw() == first
    expected = drawn()
    later.set()
    assert drawn() == expected


def test_nothing_is_set_where_nothing_was_drawn():
    before = HostDraws()
    before.drop_unchanged()
    expected = HostDraws()
    with before.again():
        drawn()
    following = drawn()
    expected.set()
    drawn()
    assert drawn() == following


def test_a_seed_gives_the_same_numbers_and_takes_none():
    before = HostDraws()
    with seeded_host_draws(3):
        first = drawn()
    with seeded_host_draws(3):
        assert drawn() == first
    following = drawn()
    before.set()
    assert drawn() == following


class Draws(nn.Module):
    def forward(self, x):
        return x * drawn()[0]


def test_a_replay_takes_none():
    before = HostDraws()
    replay(Draws(), Spec((2, 4)))
    following = drawn()
    before.set()
    assert drawn() == following
