"""What a section's first blocks say of the size of the others."""

from __future__ import annotations

import pytest

from maxslices.runner.block_ranges import Block
from maxslices.runner.block_tuning import GAIN, TRIED_BLOCKS, BlockTuner

LARGER = [32, 64, 128, 256]


def blocks(size, per_call_s, rests_s=0.0):
    """Times of enough blocks to decide by, the first two of them slow."""
    found, now_s = [], 0.0
    for number in range(TRIED_BLOCKS + 1):
        taken_s = per_call_s * (10 if number < 2 else 1)
        first = number * size
        found.append((now_s, now_s + taken_s, Block(first, first + size, first, first + size)))
        now_s += taken_s + rests_s
    return found


def settle(call_s, slice_s, rests_s=0.0):
    tuner = BlockTuner(16, LARGER, 10**6)
    while tuner.is_ready(TRIED_BLOCKS + 1):
        tuner.decide(blocks(tuner.block, call_s + tuner.block * slice_s, rests_s))
    return tuner


@pytest.mark.parametrize(
    ("call_s", "slice_s", "block"),
    [(0, 1e-3, 16), (1e-3, 1e-3, 32), (1e-2, 1e-2, 32), (5e-3, 1e-3, 128), (1, 1e-3, 256)],
)
def test_a_call_is_to_take_little_beside_its_slices(call_s, slice_s, block):
    assert settle(call_s, slice_s).block == block
    if block < LARGER[-1]:
        assert call_s <= GAIN * block * slice_s


def test_calls_that_take_no_time_by_slices_get_the_largest_block():
    assert settle(1e-2, 0).block == LARGER[-1]


def test_nothing_is_tried_where_computing_rests():
    tuner = settle(1e-2, 1e-4, rests_s=0.1)
    assert (tuner.block, tuner.why) == (16, "")


def test_nothing_is_tried_where_another_stage_takes_about_as_long():
    tuner = BlockTuner(16, LARGER, 10**6)
    assert not tuner.decide(blocks(16, 2e-2), beside_s=1.9e-2)
    assert BlockTuner(16, LARGER, 10**6).decide(blocks(16, 2e-2), beside_s=1e-2)


def test_nothing_is_tried_where_little_is_left_to_gain_by_it():
    tuner = BlockTuner(16, LARGER, total=1000)
    assert not tuner.decide(blocks(16, 2e-2))
    assert tuner.block == 16


def test_nothing_is_tried_where_there_is_nothing_larger():
    assert not BlockTuner(16).is_ready(100)
