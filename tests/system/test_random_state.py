"""Random numbers of the global generators: drawn again, and not taken from the program."""

# ruff: noqa: NPY002 - this tests the global generator
from __future__ import annotations

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from maxslices.system.process_state import HostDraws, random_state_kept


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), _normal()


def _normal() -> float:
    return float(np.random.randn())


@pytest.mark.parametrize("draw", [drawn, random.random, _normal])
def test_numbers_are_drawn_again_and_the_state_is_restored(draw):
    before = HostDraws()
    first = draw()
    before.drop_unchanged()
    later = HostDraws()
    with before.again():
        assert draw() == first
    expected = drawn()
    later.set()
    assert drawn() == expected


def test_unused_state_is_not_restored():
    before = HostDraws()
    before.drop_unchanged()
    expected = HostDraws()
    with before.again():
        drawn()
    following = drawn()
    expected.set()
    drawn()
    assert drawn() == following


def test_all_generators_are_restored(monkeypatch):
    """Those of libraries on a GPU are stood in for: CuPy has new ones inside."""
    old = {0: "generator"}
    cupy = SimpleNamespace(_random_states=old)
    state, set_to = object(), []
    torch = SimpleNamespace(
        get_rng_state=lambda: state,
        set_rng_state=set_to.append,
        cuda=SimpleNamespace(
            is_initialized=lambda: True,
            get_rng_state_all=lambda: [state],
            set_rng_state_all=set_to.append,
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy.random._generator", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch)
    before = HostDraws()
    with random_state_kept():
        assert cupy._random_states == {}
        drawn()
    following = drawn()
    before.set()
    assert drawn() == following
    assert cupy._random_states is old
    assert set_to == [state, [state]]
