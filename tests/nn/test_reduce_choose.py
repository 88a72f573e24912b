"""Plans are chosen by arithmetic that replays bear out, rewrites inside others included."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np
from torch import nn

from maxslices.nn.reduce import Rewrite, apply_rewrites
from maxslices.nn.reduce.candidates import candidates, layer_candidates
from maxslices.nn.reduce.knapsack import Knapsack
from maxslices.nn.reduce.study import ModuleOrder, ModuleRange, range_at, ranges_of, study_step
from maxslices.nn.reduce.times import (
    DeviceRates,
    ForwardTimes,
    StepTimes,
    flops_by_module,
    price,
)
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.step.model_step import ModelStep

SPEC = Spec((8, 3, 64, 64))
CHECKPOINT = Rewrite("checkpoint")


def network() -> nn.Module:
    """Two stages of blocks, as residual networks have them."""
    torch.manual_seed(0)

    def block(n_in: int, n: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(n_in, n, 3, padding=1), nn.BatchNorm2d(n), nn.GELU(),
            nn.Conv2d(n, n, 3, padding=1), nn.BatchNorm2d(n), nn.GELU(),
        )  # fmt: skip

    return nn.Sequential(
        nn.Sequential(block(3, 16), block(16, 16), block(16, 16)),
        nn.MaxPool2d(2),
        nn.Sequential(block(16, 32), block(32, 32)),
    )


def knapsack() -> tuple[nn.Module, ModelStep, Knapsack]:
    model = network()
    step = ModelStep(model, "training")
    seen = study_step(step, [SPEC], Workspaces.allowance())
    found = candidates(seen, model, ("checkpoint", "selective", "offload"))
    found += layer_candidates(seen, model)
    flops, times = flops_by_module(step, [SPEC]), ForwardTimes(DeviceRates())
    price(found, StepTimes.of(seen, ModuleOrder(model), flops, times), flops, times)
    return model, step, Knapsack.of(seen.usage, found, ModuleOrder(model))


def row(made: Knapsack, path: str, rewrite: Rewrite) -> int:
    return next(i for i, c in enumerate(made.candidates) if c.path == path and c.rewrite == rewrite)


PLANS = [
    {"0": CHECKPOINT},
    {"0.0": CHECKPOINT, "0.1": CHECKPOINT, "0.2": CHECKPOINT},
    {"0[0:2]": CHECKPOINT, "0.2": CHECKPOINT},
    {"0.0": CHECKPOINT, "0.1": CHECKPOINT, "0.2": CHECKPOINT, "0": CHECKPOINT},
    {"0": CHECKPOINT, "0[0:2]": CHECKPOINT, "0.0": CHECKPOINT, "0.1": CHECKPOINT,
     "0.2": CHECKPOINT},
    {"0": CHECKPOINT, "0.1[0:3]": CHECKPOINT, "0.1[3:6]": CHECKPOINT, "2": CHECKPOINT},
    {"0.0": Rewrite("selective"), "0.1": Rewrite("selective"), "2": CHECKPOINT},
    {"0": CHECKPOINT, "0.1": Rewrite("offload"), "0.0": CHECKPOINT},
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=[" ".join(p) for p in PLANS])
def test_expected_peaks_are_those_of_replays(plan):
    _model, step, made = knapsack()
    rows = [row(made, path, rewrite) for path, rewrite in plan.items()]
    assert not made.conflicts[rows][:, rows].any()
    replayed = step.trace(
        [SPEC], Workspaces.allowance(), steps=1, change=lambda copy: apply_rewrites(copy, plan)
    ).peak_bytes
    whole = step.trace([SPEC], Workspaces.allowance(), steps=1).peak_bytes
    assert replayed < whole
    # Of what is saved, no more than a tenth may be wrong.
    assert abs(made.peak(rows) - replayed) <= 0.1 * (whole - replayed)


@pytest.mark.parametrize("part", [0.8, 0.6, 0.5])
def test_a_choice_stays_within_its_limit_and_costs_less_than_checkpoints_of_all_blocks(part):
    _model, _step, made = knapsack()
    limit = part * float(made.usage.max())
    rows = made.cheapest(limit)
    assert rows is not None
    assert made.peak(rows) <= limit
    assert not made.conflicts[np.ix_(rows, rows)].any()
    blocks = [row(made, path, CHECKPOINT) for path in ("0.0", "0.1", "0.2", "2.0", "2.1")]
    assert made.cost(rows) <= made.cost(blocks) or made.peak(blocks) > limit


def test_runs_are_groups_of_layers():
    model = network()
    found = {run.path for run in ranges_of(model)}
    assert {"0.0[0:3]", "0.0[3:6]", "0[0:2]"} <= found
    assert "0.0[0:6]" not in found  # that is the block itself
    assert range_at("0.0[3:6]") == ModuleRange("0.0", 3, 6)
    assert range_at("0.0") is None


def test_what_is_freed_when_a_run_has_returned_was_not_kept_by_it():
    # The result of a norm is freed when ReLU has made its own: that is after the run's end.
    layers = [nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU()]
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *layers, nn.Conv2d(8, 8, 3, padding=1))
    step = ModelStep(model, "training")
    seen = study_step(step, [SPEC], Workspaces.none())
    found = candidates(seen, model, ("checkpoint",))
    one = next(c for c in found if c.path == "[1:4]")
    result = 8 * 8 * 64 * 64 * 4
    saved = -sum(n_bytes for _, end, n_bytes in one.changes if end == one.begin)
    assert result <= saved < 1.01 * result  # of the convolution alone


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_of_a_convolution_are_put_together(parts):
    # In the backward pass that is where the peak is: gradients of all parts of its argument, and
    # that of the whole.
    model = nn.Sequential(nn.Conv2d(3, 64, 1), nn.GELU(), nn.Conv2d(64, 4, 3, padding=1))
    step = ModelStep(model, "training")
    workspaces = Workspaces.allowance()
    seen = study_step(step, [SPEC], workspaces)
    made = Knapsack.of(seen.usage, layer_candidates(seen, model), ModuleOrder(model))
    plan = {"2": Rewrite("split", (), parts)}
    replayed = step.trace(
        [SPEC], workspaces, steps=1, change=lambda copy: apply_rewrites(copy, plan)
    ).peak_bytes
    assert made.peak([row(made, "2", plan["2"])]) == pytest.approx(replayed, rel=0.1)
