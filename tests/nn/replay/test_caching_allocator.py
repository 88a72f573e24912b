"""Rules of the caching allocator. The sizes of each test make one rule decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.nn.replay import CachingAllocator, least_limit

MIB = 2**20
RECORDED = json.loads((Path(__file__).parent / "h200_requests.json").read_text())
TOTAL_BYTES = 150109880320
"""Of the card on which they were recorded."""


FREED = [(0, 100), (0, -1)]
IN_THREE = [(0, 90), (0, -1), (1, 30), (2, 30), (3, 30)]


@pytest.mark.parametrize(
    ("steps", "held"),
    [
        # Small requests share segments of 2 MiB.
        ([(0, 1e-6)], 2), ([(0, 1), (1, 1)], 2), ([(0, 1), (1, 1 - 511 / MIB), (2, 1e-6)], 4),
        # Those below 10 share segments of 20.
        ([(0, 1 + 1e-6)], 20), ([(0, 9), (1, 9)], 20), ([(0, 9), (1, 9), (2, 3)], 40),
        # Larger ones take their own in steps of 2.
        ([(0, 10)], 10), ([(0, 11)], 12),
        # A freed part is used again, and split if more than 1 MiB remains.
        ([*FREED, (1, 60), (2, 38)], 100), ([*FREED, (1, 99), (2, 1 + 1e-6)], 120),
        # The smallest free part that fits is taken.
        ([(0, 100), (1, 50), (0, -1), (1, -1), (2, 40), (3, 100)], 150),
        # Free neighbours become one, unless something lies between them.
        ([*FREED, (1, 40), (2, 40), (1, -1), (2, -1), (3, 100)], 100),
        ([*IN_THREE, (1, -1), (3, -1), (4, 60)], 150),
    ],
)  # fmt: skip
def test_segments_are_taken_split_and_joined(steps, held):
    allocator = CachingAllocator()
    assert allocator.run([(key, int(n * MIB + 0.999) if n > 0 else -1) for key, n in steps])
    assert allocator.reserved_bytes == held * MIB


def test_whole_unused_segments_are_given_back_before_it_fails():
    allocator = CachingAllocator(100 * MIB)
    assert allocator.run([(0, 60 * MIB), (0, -1), (1, 70 * MIB)])
    assert (allocator.reserved_bytes, allocator.retries) == (70 * MIB, 1)
    # Half of the first segment is in use: it cannot go.
    split = [(0, 60 * MIB), (0, -1), (1, 30 * MIB), (2, 70 * MIB)]
    assert not CachingAllocator(100 * MIB).run(split)
    assert CachingAllocator(130 * MIB).run(split)


def test_the_least_limit_lies_between_handed_out_and_held():
    steps = [(0, 60 * MIB), (0, -1), (1, 70 * MIB)]
    assert least_limit(steps, 70 * MIB, 130 * MIB) == 70 * MIB


def test_limits_above_the_least_do_as_well_where_more_room_is_worse():
    # The first two leave a hole that is kept if there is room, and then too small for the last.
    steps = [(0, 40 * MIB), (0, -1), (1, 30 * MIB), (2, 50 * MIB), (2, -1), (3, 60 * MIB)]
    runs = [CachingAllocator(n * MIB).run(steps) for n in range(90, 180, 2)]
    least = least_limit(steps, 90 * MIB, 180 * MIB)
    assert CachingAllocator(least).run(steps)
    assert all(runs[(least // MIB - 90) // 2 :])


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 40 * MIB)), max_size=60))
def test_accounts_never_lose_memory(requests):
    allocator, live = CachingAllocator(), {}
    for key, n_bytes in requests:
        if key in live:
            allocator.free(key)
            del live[key]
        else:
            assert allocator.allocate(key, n_bytes)
            live[key] = n_bytes
        assert allocator.allocated_bytes <= allocator.reserved_bytes
        rounded = sum(-(-n // 512) * 512 for n in live.values())
        assert 0 <= allocator.allocated_bytes - rounded <= len(live) * MIB
    for key in live:
        allocator.free(key)
    assert allocator.allocated_bytes == 0
    assert sum(size for pool in allocator._free for size, _, _ in pool) == allocator.reserved_bytes
    allocator.give_back()
    assert allocator.reserved_bytes == 0


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_requests_are_served_and_refused_as_they_were(case):
    """Steps near their limit: requests in units of 512 bytes, where "x" was refused."""
    recorded = RECORDED[case]
    allocator = CachingAllocator(int(recorded["part_of_card"] * TOTAL_BYTES))
    for key, size in recorded["steps"]:
        if size < 0:
            allocator.free(key)
        else:
            assert allocator.allocate(key, 512 * size) is (key != "x")
    assert allocator.peak_reserved_bytes == recorded["held_at_most"]
    assert allocator.reserved_bytes == recorded["held_at_end"]


def test_of_two_free_segments_the_one_at_the_lower_address_is_taken():
    """The third, which is given back for the fourth, leaves a gap that the fifth comes into."""
    steps = [(k, size * MIB) for k, size in enumerate((100, 200, 300))]
    allocator = CachingAllocator(950 * MIB)
    assert allocator.run([*steps, (1, -1), (3, 400 * MIB), (4, 100 * MIB)])
    segments = {key: block.address for key, block in allocator._live.items()}
    assert segments[0] > segments[4] > segments[2] > segments[3]
    # A part of either would do for 90: the one below is taken, and the other remains whole.
    assert allocator.run([(0, -1), (4, -1), (5, 90 * MIB)])
    assert allocator._live[5].address == segments[4]
