"""Sizes of shares, by a simulation of workers: few shares, and all end at nearly the same time."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.workers.share_sizes import MOST_BLOCKS, ShareSizes


def deal(n_blocks, block_s, ends_s=0.0, most_blocks=MOST_BLOCKS):
    """Deal blocks out to workers; the sizes of all shares, and when each worker ends.

    A share takes `ends_s` beside what its blocks take.
    """
    names = [str(number) for number in range(len(block_s))]
    sizes, left, shares = ShareSizes(most_blocks), n_blocks, []
    free, ended = [(0.0, name) for name in names], dict.fromkeys(names, 0.0)
    begun = {}
    while left:
        now_s, name = heapq.heappop(free)
        if name in begun:
            sizes.end(begun[name], name, now_s - begun[name][1])
        n = sizes.next_blocks(left, name, names, now_s)
        begun[name] = (name, now_s)
        sizes.begin(begun[name], name, n, now_s)
        ended[name] = now_s + ends_s + n * block_s[int(name)]
        heapq.heappush(free, (ended[name], name))
        left -= n
        shares.append(n)
    return shares, ended


@given(
    st.integers(1, 3000), st.lists(st.floats(0.01, 10), min_size=1, max_size=9), st.integers(1, 40)
)
def test_all_blocks_are_dealt_out_in_shares_of_at_most_so_many(n_blocks, block_s, most):
    shares, _ = deal(n_blocks, block_s, 0.5, most)
    assert sum(shares) == n_blocks
    assert min(shares) >= 1
    assert max(shares) <= most


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_workers_that_are_equally_fast_have_three_shares_each_and_end_together(count):
    shares, ended = deal(32 * count, [1.0] * count, 0.1)
    assert len(shares) <= 3 * count
    assert max(ended.values()) <= 32 + 3 * 0.1 + 1  # a block more than without any loss


@pytest.mark.parametrize("block_s", [[1, 1.03], [1, 2], [1, 1, 1, 2.5], [1, 1.3, 1.7, 2.9]])
@pytest.mark.parametrize("per_worker", [16, 32, 100])
def test_workers_that_differ_end_within_a_block_of_the_slowest(per_worker, block_s):
    n_blocks = per_worker * len(block_s)
    _, ended = deal(n_blocks, block_s)
    together_s = n_blocks / sum(1 / each for each in block_s)
    assert max(ended.values()) <= together_s + 1.2 * max(block_s)


def test_one_that_is_far_slower_than_the_others_has_its_first_share_alone():
    shares, ended = deal(64, [1, 1, 1, 5])
    assert shares[3] == 8
    assert max(ended.values()) == 5 * 8


def test_the_first_shares_leave_as_much_to_make_up_for_a_slow_worker():
    shares, _ = deal(20, [1.0, 1.0])
    assert shares[:2] == [5, 5]


def test_one_that_joins_is_taken_to_be_as_fast_as_the_others():
    sizes = ShareSizes()
    sizes.begin("a", "first", 10, 0.0)
    sizes.end("a", "first", 20.0)  # two seconds a block
    sizes.begin("b", "first", 8, 20.0)
    # After 4 s six of its blocks are left, with the others ten for two workers.
    assert sizes.next_blocks(4, "second", ["first", "second"], 24.0) == 4
    assert sizes.next_blocks(100, "second", ["first", "second"], 24.0) == MOST_BLOCKS
    assert sizes.next_blocks(15, "second", ["first", "second"], 24.0) == 10  # of 21 / 2 / 1.05


def test_a_share_that_was_not_done_tells_nothing_of_its_worker():
    sizes = ShareSizes()
    sizes.begin("a", "first", 10, 0.0)
    sizes.end("a", None, 0.0)
    assert sizes.next_blocks(40, "first", ["first", "second"], 1.0) == 10  # half of its part
