"""A method that takes long is spoken of while it is at work."""

from __future__ import annotations

import re
import time
import warnings

import numpy as np
import pytest

from maxslices import Pipeline, Registry, method, run
from maxslices.runner.report import progress
from tests.planner.ledgers import two

METHODS = Registry()


@method("projection", calc_max_slices=two, registry=METHODS)
def slow(data, iterations: int = 1):
    """Return what it was given, after some time for each iteration."""
    time.sleep(iterations * 1e-9)
    return data.copy()


def of(iterations):
    steps = [{"method": "slow", "parameters": {"iterations": iterations}}]
    return Pipeline.from_steps(steps, METHODS)


def said_of(iterations, first_s, n_blocks, monkeypatch):
    """What is said of the calls of a run."""
    monkeypatch.setattr(progress, "FIRST_S", first_s)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(np.ones((n_blocks, 3, 5), np.float32), of(iterations), device="cpu", block=1)
    said = [str(each.message) for each in caught]
    return [text for text in said if "at work" in text or "took" in text]


def test_a_billion_iterations_say_how_long_the_rest_takes_at_least(monkeypatch):
    said = said_of(10**9, 0.2, 3, monkeypatch)
    begin = r"slow\(iterations=1000000000\) is at work on one block for \d+ s; "
    assert re.match(begin + r"3 blocks of its size are left, which take \d s at least", said[0])
    assert re.match(begin + "it is the last block", said[-1])


def test_the_first_block_says_how_long_the_others_take(monkeypatch):
    monkeypatch.setattr(progress, "LONG_S", 0.05)
    (said,) = said_of(10**7, 30.0, 21, monkeypatch)
    assert re.fullmatch(
        r"slow\(iterations=10000000\) took 0\.\d+ s for one block; 20 blocks of its size are left, "
        r"which take about \d+ s",
        said,
    )


def test_calls_that_are_short_are_not_spoken_of(monkeypatch):
    assert said_of(10**6, 30.0, 40, monkeypatch) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(31, "31 s"), (119, "119 s"), (120, "2 minutes"), (7200, "2 hours"), (10**6, "12 days")],
)
def test_times_in_words(seconds, words):
    assert progress._time(seconds) == words
