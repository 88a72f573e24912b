"""The search for a plan: bounded by replays, not by the clock."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.nn_errors import ModelArgumentError, TooLargeError
from maxslices.nn.reduce import reduce_memory, restore, rewrite_search
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep

from .networks import deep

MIB = 2**20

SPEC = Spec((4, 3, 128, 128))


def memory(part: float) -> int:
    step = ModelStep(deep(), "training", torch.optim.Adam)
    peak = step.trace([SPEC], Workspaces.allowance()).peak_bytes
    return int(part * peak) + CONTEXT_BYTES


def test_the_same_call_finds_the_same_plan_however_long_it_takes(monkeypatch):
    model, limit = deep(), memory(0.5)
    _, fast = reduce_memory(model, SPEC, limit)
    restore(model, fast)
    hours = count(0, 3600)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(hours)))
    _, slow = reduce_memory(model, SPEC, limit)
    assert slow.rewrites == fast.rewrites
    assert slow.n_replays == fast.n_replays


def test_a_search_is_over_after_its_replays():
    for max_replays in (1, 3):
        with pytest.raises(TooLargeError, match="smallest found"):
            reduce_memory(deep(), SPEC, memory(0.03), max_replays=max_replays)
    _, summary = reduce_memory(deep(), SPEC, memory(0.5), max_replays=4)
    assert summary.n_replays <= 4 + 2  # those of the unreduced step are no search
    with pytest.raises(ModelArgumentError, match="max_replays is 1 or more, not 0"):
        reduce_memory(deep(), SPEC, memory(0.5), max_replays=0)


def test_where_nothing_fits_more_is_given_up_than_for_any_uniform_plan():
    with pytest.raises(TooLargeError) as caught:
        reduce_memory(deep(), SPEC, memory(0.03), means=("checkpoint",))
    smallest = str(caught.value).partition("a card of ")[2].split(";")[0]
    assert reduce_memory(deep(), SPEC, f"{float(smallest.split()[0]) * 1.01} MB")[1].fits


def found_among(monkeypatch, cheapest, needed_mib, added_s):
    """Best plan of a search for 1000 MiB among fake sets, each a path; the last is the lowest."""
    monkeypatch.setattr(
        rewrite_search.RewriteSearch,
        "_replayed",
        lambda _self, _space, picked: SimpleNamespace(
            chosen=picked,
            needed_bytes=needed_mib[picked[0].path] * MIB,
            added_s=added_s[picked[0].path],
        ),
    )
    candidates = [SimpleNamespace(path=path) for path in needed_mib]
    knapsack = SimpleNamespace(
        candidates=candidates,
        cheapest=lambda limit, _: [list(needed_mib).index(cheapest(limit / MIB))],
        lowest=lambda *_: [len(candidates) - 1],
        peak=lambda _: 500 * MIB,
    )
    monkeypatch.setattr(rewrite_search, "knapsack_of", lambda _: knapsack)
    monkeypatch.setattr(rewrite_search, "uniform_sets", lambda *_: [])
    searcher = rewrite_search.RewriteSearch(
        SimpleNamespace(model=None), [], Workspaces.none(), 1000 * MIB, 64
    )
    best = searcher.find(SimpleNamespace(timeline=SimpleNamespace(order=None)), 0)
    return best.chosen[0].path


def test_beside_the_whole_model_the_lowest_set_is_tried(monkeypatch):
    # ResNet50 at 0.35 of its peak ended with the whole model on the host, 200 ms in place of 106.
    needed, added = {"": 900, "lowest": 900}, {"": 0.2, "lowest": 0.1}
    assert found_among(monkeypatch, lambda _: "", needed, added) == "lowest"


def test_after_the_whole_model_the_bisection_goes_on(monkeypatch):
    # With the workspaces of that day ResNet50 at 0.35 ended with 88 ms in place of 63.
    def cheapest(limit):
        return "too large" if limit > 950 else "between" if limit > 500 else ""

    needed = {"": 400, "too large": 1100, "between": 950, "lowest": 900}
    added = {"": 0.2, "too large": 0.05, "between": 0.06, "lowest": 0.1}
    assert found_among(monkeypatch, cheapest, needed, added) == "between"


def test_a_set_is_replayed_once(monkeypatch):
    searcher = rewrite_search.RewriteSearch(None, [], Workspaces.none(), 1000, 64)
    traced = []
    monkeypatch.setattr(
        rewrite_search.RewriteSearch, "trace", lambda _self, rewrites: traced.append(rewrites)
    )
    space = SimpleNamespace(
        first=[], planned=lambda chosen, *_: SimpleNamespace(chosen=chosen, needed_bytes=900)
    )
    a, b = (SimpleNamespace(path=path, rewrite="") for path in "ab")
    plan = searcher._replayed(space, [a, b])
    assert searcher._replayed(space, [b, a]) is plan
    assert searcher._replayed(space, [a]) is not plan
    assert len(traced) == 2
