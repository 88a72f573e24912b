"""Shares consist of whole blocks, and each is distributed once."""

from __future__ import annotations

import gc
import heapq
import weakref
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.errors import MethodError
from maxslices.workers.dealing import MOST_BLOCKS, Dealer, ShareSizes
from maxslices.workers.worker_calls import WorkerCalls, sendable


def nothing(job, share):
    return job


@pytest.mark.parametrize(("start", "stop", "block"), [(0, 100, 7), (14, 100, 7), (0, 5, 7)])
def test_each_slice_is_in_one_share_of_whole_blocks(client, start, stop, block):
    dealer = Dealer(WorkerCalls(client), {})
    shares = sorted(
        (share.start, share.stop)
        for share, *_ in dealer.deal(nothing, 1, [range(start, stop)], block)
    )
    assert shares[0][0] == start
    assert shares[-1][1] == stop
    for (_, end), (begin, _) in pairwise(shares):
        assert end == begin
        assert (begin - start) % block == 0


def count_tasks(dask_scheduler):
    return sum(key.startswith("answer_call") for key in dask_scheduler.tasks)


def test_scheduler_has_at_most_one_share_per_worker(client):
    dealer, running, queued = Dealer(WorkerCalls(client), {}), [], []
    for number, _ in enumerate(dealer.deal(nothing, 1, [range(200)], 1)):
        running.append(len(dealer.calls.running))
        if number % 3 == 0:
            queued.append(client.run_on_scheduler(count_tasks))
    assert max(running) <= 2
    assert max(queued) <= 2 * 2 + 2  # the scheduler forgets finished tasks a little later


def is_profiled(job, share):
    """Whether Dask's profiler looks at this worker."""
    from distributed import get_worker

    return "profile" in get_worker().periodic_callbacks


def test_workers_are_not_profiled(client):
    assert not Dealer(WorkerCalls(client), {}).once(is_profiled, 0, range(1))


class Array:
    """A stand-in for an array of a block."""


@pytest.mark.parametrize("cause", [ValueError("of the method"), ValueError(lambda: 0)])
def test_sent_error_does_not_keep_arrays_alive(cause):
    def method(data):
        raise MethodError("it failed") from cause

    def work():
        data = Array()
        kept.append(weakref.ref(data))
        method(data)

    kept: list[weakref.ref[Array]] = []
    try:
        work()
    except MethodError as error:
        sent = sendable(error)
    gc.collect()
    assert str(sent) == "it failed"
    assert kept[0]() is None


def simulate(n_blocks, block_s, ends_s=0.0):
    """Simulate workers; the sizes of all shares, and the end of each worker.

    A share takes `ends_s` in addition to its blocks.
    """
    names = [str(number) for number in range(len(block_s))]
    sizes, left, shares = ShareSizes(), n_blocks, []
    free, ended = [(0.0, name) for name in names], dict.fromkeys(names, 0.0)
    begun = {}
    while left:
        now_s, name = heapq.heappop(free)
        if name in begun:
            sizes.end(name, now_s - begun[name])
        n = sizes.next_blocks(left, name, names, now_s)
        begun[name] = now_s
        sizes.begin(name, n, now_s)
        ended[name] = now_s + ends_s + n * block_s[int(name)]
        heapq.heappush(free, (ended[name], name))
        left -= n
        shares.append(n)
    return shares, ended


@given(st.integers(1, 3000), st.lists(st.floats(0.01, 10), min_size=1, max_size=9))
def test_shares_cover_all_blocks_and_have_a_maximum(n_blocks, block_s):
    shares, _ = simulate(n_blocks, block_s, 0.5)
    assert sum(shares) == n_blocks
    assert min(shares) >= 1
    assert max(shares) <= MOST_BLOCKS


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_equally_fast_workers_get_three_shares_and_end_together(count):
    shares, ended = simulate(32 * count, [1.0] * count, 0.1)
    assert len(shares) <= 3 * count
    assert max(ended.values()) <= 32 + 3 * 0.1 + 1  # a block more than without any loss


@pytest.mark.parametrize("block_s", [[1, 1.03], [1, 2], [1, 1, 1, 2.5], [1, 1.3, 1.7, 2.9]])
@pytest.mark.parametrize("per_worker", [16, 32, 100])
def test_workers_of_different_speed_end_within_a_block(per_worker, block_s):
    n_blocks = per_worker * len(block_s)
    _, ended = simulate(n_blocks, block_s)
    together_s = n_blocks / sum(1 / each for each in block_s)
    assert max(ended.values()) <= together_s + 1.2 * max(block_s)


def test_new_worker_is_assumed_to_be_as_fast_as_the_others():
    sizes = ShareSizes()
    sizes.begin("first", 10, 0.0)
    sizes.end("first", 20.0)  # two seconds a block
    sizes.begin("first", 8, 20.0)
    # After 4 s six of its blocks are left, with the others ten for two workers.
    assert sizes.next_blocks(4, "second", ["first", "second"], 24.0) == 4
    assert sizes.next_blocks(100, "second", ["first", "second"], 24.0) == MOST_BLOCKS
    assert sizes.next_blocks(15, "second", ["first", "second"], 24.0) == 10  # of 21 / 2 / 1.05
