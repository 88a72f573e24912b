"""The search for a plan: bounded by replays, not by the clock."""

from __future__ import annotations

import time
from itertools import count

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.nn.nn_errors import ModelArgumentError, TooLargeError
from maxslices.nn.reduce import reduce_memory, restore
from maxslices.nn.reduce.knapsack import Knapsack
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep

from .networks import DEEP_INPUT as SPEC
from .networks import deep
from .networks import deep_memory as memory

MIB = 2**20


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
    _, summary = reduce_memory(deep(), SPEC, memory(0.6), max_replays=6)
    assert summary.n_replays <= 6 + 2  # plus those of the unreduced step
    with pytest.raises(ModelArgumentError, match="max_replays is 1 or more, not 0"):
        reduce_memory(deep(), SPEC, memory(0.5), max_replays=0)


def test_targets_are_lowered_until_no_cheaper_plan_can_follow(monkeypatch):
    targets: list[float] = []
    choices: list[frozenset[int]] = []
    cheapest = Knapsack.cheapest

    def watched(self, limit_bytes):
        targets.append(limit_bytes)
        rows = cheapest(self, limit_bytes)
        choices.append(frozenset(rows or ()))
        return rows

    monkeypatch.setattr(Knapsack, "cheapest", watched)
    _, summary = reduce_memory(deep(), SPEC, memory(0.5), means=("checkpoint",))
    assert targets == sorted(set(targets), reverse=True)
    assert len(set(choices)) == len(choices)  # no set is proposed again
    assert summary.fits
    # The unreduced step, and all sets but the last: it takes longer than the best plan.
    assert summary.n_replays == len(choices)


def test_the_unreduced_step_competes_with_all_plans():
    # Convolutions in parts concatenate their gradients, which takes 9 % more here.
    blocks = [
        nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU())
        for _ in range(2)
    ]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *blocks, nn.Conv2d(32, 1, 1))
    spec = Spec((4, 3, 64, 64))
    step = ModelStep(model, "training", torch.optim.Adam)
    needed = step.trace([spec], Workspaces.allowance()).needed_bytes
    with pytest.raises(TooLargeError, match="smallest found needs") as caught:
        reduce_memory(model, spec, int(0.3 * needed) + CONTEXT_BYTES, means=("split",))
    smallest = str(caught.value).partition("smallest found needs ")[2].split()
    assert float(smallest[0]) * {"MB": 1e6, "kB": 1e3}[smallest[1]] <= 1.005 * needed
