"""Shares are dealt out a few at a time, of whole blocks, each once."""

from __future__ import annotations

import gc
import time
import weakref
from itertools import pairwise

import pytest

from maxslices.errors import MethodError
from maxslices.workers.dealing import Dealer, sendable
from maxslices.workers.section_job import Share
from maxslices.workers.share_sizes import MOST_BLOCKS, ShareSizes


def nothing(job, share):
    return job


@pytest.mark.parametrize(("start", "stop", "block"), [(0, 100, 7), (14, 100, 7), (0, 5, 7)])
def test_each_slice_is_dealt_out_once_in_whole_blocks(client, start, stop, block):
    dealer = Dealer(client, {})
    shares = sorted(
        (share.start, share.stop)
        for share, _ in dealer.deal(nothing, 1, [range(start, stop)], block)
    )
    assert shares[0][0] == start
    assert shares[-1][1] == stop
    for (_, end), (begin, _) in pairwise(shares):
        assert end == begin
        assert (begin - start) % block == 0


def count_tasks(dask_scheduler):
    return sum(key.startswith("answer") for key in dask_scheduler.tasks)


def test_no_more_shares_are_with_the_scheduler_than_there_are_workers(client):
    dealer, running, known = Dealer(client, {}, most_blocks=1), [], []
    for number, _ in enumerate(dealer.deal(nothing, 1, [range(200)], 1)):
        running.append(len(dealer._running))
        if number % 20 == 0:
            known.append(client.run_on_scheduler(count_tasks))
    assert max(running) <= 2
    assert max(known) <= 2 * 2 + 2  # of those that are done, the last are just being forgotten


def sleep(job, share):
    time.sleep(2e-3 * (share.stop - share.start))


def test_shares_are_large_at_first_and_become_smaller_towards_the_end(client):
    sizes = {}
    for share, _ in Dealer(client, {}).deal(sleep, 1, [range(300)], 1):
        sizes[share.start] = share.stop - share.start
    ordered = [size for _, size in sorted(sizes.items())]
    assert ordered[:2] == [MOST_BLOCKS] * 2
    assert max(ordered) == MOST_BLOCKS
    assert ordered[-1] < MOST_BLOCKS


def test_the_dealer_notes_what_each_worker_took(client, monkeypatch):
    begin, named = ShareSizes.begin, []

    def noted(sizes, key, worker, *given):
        named.append(worker)
        begin(sizes, key, worker, *given)

    monkeypatch.setattr(ShareSizes, "begin", noted)
    dealer = Dealer(client, {})
    workers = {answer.worker for _, answer in dealer.deal(sleep, 1, [range(100)], 1)}
    assert dealer._sizes._block_s.keys() == workers
    assert min(dealer._sizes._block_s.values()) >= 2e-3  # what a block sleeps
    assert dealer._sizes._begun == {}
    assert named[:2] == [None, None]
    assert set(named[2:]) <= workers


def test_what_was_done_before_does_not_tell_how_long_the_blocks_of_a_section_take(client):
    dealer = Dealer(client, {})
    dealer.once(sleep, 1, Share(0, 100))
    sizes = {
        share.start: share.stop - share.start for share, _ in dealer.deal(sleep, 1, [range(40)], 1)
    }
    assert [sizes[0], sizes[10]] == [10, 10]  # half of what each would do


def test_one_share_alone(client):
    assert Dealer(client, {}).once(nothing, 5, Share(0, 1)).value == 5


class Array:
    """Stands for an array of a block."""


@pytest.mark.parametrize("cause", [ValueError("of the method"), ValueError(lambda: 0)])
def test_an_error_that_is_sent_does_not_keep_the_arrays_of_the_block(cause):
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
