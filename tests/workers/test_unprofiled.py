"""Dask's profiler does not keep alive what methods allocate."""

from __future__ import annotations

import threading

import pytest

from maxslices.errors import MethodError
from maxslices.workers.dealing import Dealer
from maxslices.workers.workers import Workers


def profiled_stacks(*_):
    """Number of stacks that Dask's profiler keeps when it looks at this moment."""
    from distributed import get_worker, profile

    worker = get_worker()
    worker.profile_recent = found = profile.create()
    worker.trigger_profile()
    return found["count"]


def is_profiled(_=None):
    from distributed import get_worker

    return threading.get_ident() in get_worker().active_threads


def fail(job, share):
    raise MethodError("as asked for")


def test_shares_are_not_profiled_and_other_peoples_calls_are(client):
    found = [
        answer.value for _, answer in Dealer(client, {}).deal(profiled_stacks, 0, [range(8)], 1)
    ]
    assert found
    assert not any(found)
    assert all(client.gather(client.map(is_profiled, range(8), pure=False)))


def test_what_is_measured_on_a_worker_is_not_profiled(client):
    assert Workers(client, "cpu", ()).submit(profiled_stacks) == 0


def test_a_share_that_fails_leaves_profiling_as_it_was(client):
    with pytest.raises(MethodError, match="as asked for"):
        list(Dealer(client, {}).deal(fail, 0, [range(2)], 1))
    assert all(client.gather(client.map(is_profiled, range(8), pure=False)))
