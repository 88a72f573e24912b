"""Repeated steps in a simulated allocator, compared with results by hand."""

from __future__ import annotations

from itertools import islice

import pytest

torch = pytest.importorskip("torch")

from maxslices.nn.replay import CachingAllocator
from maxslices.nn.replay.expandable_segments import ExpandableAllocator
from maxslices.nn.replay.trace import Counts, each_step, steady

from .traces import trace_of

MIB = 2**20
ALLOCATORS = pytest.mark.parametrize("kind", [CachingAllocator, ExpandableAllocator])


# 20 of small blocks, and then one of 60: what is free of one cannot serve the other.
SMALL = [(f"small {i}", 1.0) for i in range(20)]
IN_TURNS = [*SMALL, *((name, -1.0) for name, _ in SMALL), ("large", 60.0), ("large", -1.0)]


@ALLOCATORS
def test_memory_that_is_given_back_in_each_step_is_counted(kind):
    trace = trace_of(IN_TURNS, IN_TURNS)
    outcome = steady(trace, kind(70 * MIB))
    assert outcome.runs
    # Neither the first small block of each step nor the large block fits.
    assert outcome.taken_bytes == 80 * MIB
    assert list(islice(each_step(trace, kind(70 * MIB)), 9))[3:] == 6 * [Counts(2, 80 * MIB)]


@ALLOCATORS
def test_where_there_is_room_for_both_nothing_is_given_back(kind):
    outcome = steady(trace_of(IN_TURNS, IN_TURNS), kind(80 * MIB))
    assert (outcome.runs, outcome.taken_bytes) == (True, 0)


@ALLOCATORS
def test_what_finds_no_room_does_not_run(kind):
    assert not steady(trace_of(IN_TURNS, IN_TURNS), kind(58 * MIB)).runs


@ALLOCATORS
def test_what_is_alive_at_the_end_is_replaced_in_the_next_step(kind):
    first = [("gradient", 40.0), ("state", 40.0)]
    second = [("gradient", -1.0), ("gradient", 40.0)]
    trace = trace_of(first, second)
    counts = list(islice(each_step(trace, kind(80 * MIB)), 50))
    assert counts == [Counts(0, 80 * MIB)] + 49 * [Counts(0, 0)]


@ALLOCATORS
def test_steps_that_are_not_alike_are_not_repeated(kind):
    trace = trace_of([("kept", 40.0)], [("more", 40.0)])
    assert list(each_step(trace, kind())) == [Counts(0, 40 * MIB), Counts(0, 40 * MIB)]
    assert not steady(trace, kind(60 * MIB)).runs
