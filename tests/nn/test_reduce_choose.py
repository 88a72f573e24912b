"""Expected peaks and times of candidates, and the choice among them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np
from torch import nn

from maxslices.nn.reduce import Rewrite, apply_rewrites
from maxslices.nn.reduce.candidates import Candidate, candidates, layer_candidates
from maxslices.nn.reduce.knapsack import Knapsack
from maxslices.nn.reduce.study import ModuleOrder, ModuleRange, range_at, ranges_of, study_step
from maxslices.nn.reduce.times import (
    BACKWARD,
    HOST_BACKWARD,
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
    options = candidates(seen, model, ("checkpoint", "selective", "offload"))
    options += layer_candidates(seen, model)
    flops, times = flops_by_module(step, [SPEC]), ForwardTimes(DeviceRates())
    price(options, StepTimes.of(seen, ModuleOrder(model), flops, times), flops, times)
    return model, step, Knapsack.of(seen.usage, options, ModuleOrder(model))


def row(sack: Knapsack, path: str, rewrite: Rewrite) -> int:
    return next(i for i, c in enumerate(sack.candidates) if c.path == path and c.rewrite == rewrite)


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
    _model, step, sack = knapsack()
    rows = [row(sack, path, rewrite) for path, rewrite in plan.items()]
    assert not sack.conflicts[rows][:, rows].any()
    replayed = step.trace(
        [SPEC], Workspaces.allowance(), steps=1, change=lambda copy: apply_rewrites(copy, plan)
    ).peak_bytes
    whole = step.trace([SPEC], Workspaces.allowance(), steps=1).peak_bytes
    assert replayed < whole
    # Of what is saved, no more than a tenth may be wrong.
    assert abs(sack.peak(rows) - replayed) <= 0.1 * (whole - replayed)


@pytest.mark.parametrize("part", [0.8, 0.6, 0.5])
def test_a_choice_stays_within_its_limit_and_costs_less_than_checkpoints_of_all_blocks(part):
    _model, _step, sack = knapsack()
    limit = part * float(sack.usage.max())
    rows = sack.cheapest(limit)
    assert rows is not None
    assert sack.peak(rows) <= limit
    assert not sack.conflicts[np.ix_(rows, rows)].any()
    blocks = [row(sack, path, CHECKPOINT) for path in ("0.0", "0.1", "0.2", "2.0", "2.1")]
    assert sack.cost(rows) <= sack.cost(blocks) or sack.peak(blocks) > limit


def test_ranges_are_groups_of_layers():
    model = network()
    paths = {run.path for run in ranges_of(model)}
    assert {"0.0[0:3]", "0.0[3:6]", "0[0:2]"} <= paths
    assert "0.0[0:6]" not in paths  # that is the block itself
    assert range_at("0.0[3:6]") == ModuleRange("0.0", 3, 6)
    assert range_at("0.0") is None


def test_tensors_freed_right_after_a_range_do_not_count_as_kept():
    # The result of a norm is freed when ReLU has made its own: that is after the run's end.
    layers = [nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU()]
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *layers, nn.Conv2d(8, 8, 3, padding=1))
    step = ModelStep(model, "training")
    seen = study_step(step, [SPEC], Workspaces.none())
    options = candidates(seen, model, ("checkpoint",))
    one = next(c for c in options if c.path == "[1:4]")
    result = 8 * 8 * 64 * 64 * 4
    saved = -sum(n_bytes for _, end, n_bytes in one.changes if end == one.begin)
    assert result <= saved < 1.01 * result  # of the convolution alone


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_expected_peaks_include_the_concatenation_of_parts(parts):
    # In the backward pass that is where the peak is: gradients of all parts of its argument, and
    # that of the whole.
    model = nn.Sequential(nn.Conv2d(3, 64, 1), nn.GELU(), nn.Conv2d(64, 4, 3, padding=1))
    step = ModelStep(model, "training")
    workspaces = Workspaces.allowance()
    seen = study_step(step, [SPEC], workspaces)
    sack = Knapsack.of(seen.usage, layer_candidates(seen, model), ModuleOrder(model))
    plan = {"2": Rewrite("split", (), parts)}
    replayed = step.trace(
        [SPEC], workspaces, steps=1, change=lambda copy: apply_rewrites(copy, plan)
    ).peak_bytes
    assert sack.peak([row(sack, "2", plan["2"])]) == pytest.approx(replayed, rel=0.1)


def two_blocks() -> nn.Sequential:
    block = [nn.Conv2d(3, 32, 3, padding=1), nn.GELU(), nn.Conv2d(32, 32, 3, padding=1)]
    return nn.Sequential(nn.Sequential(*block), nn.GELU(), nn.Conv2d(32, 3, 1))


def step_times(times: ForwardTimes) -> tuple[StepTimes, list[Candidate]]:
    model, spec = two_blocks(), Spec((8, 3, 64, 64))
    step = ModelStep(model, "training")
    seen = study_step(step, [spec], Workspaces.allowance())
    flops = flops_by_module(step, [spec])
    of_step = StepTimes.of(seen, ModuleOrder(model), flops, times)
    options = candidates(seen, model, ("checkpoint", "selective", "offload"))
    price(options, of_step, flops, times)
    return of_step, options


def candidate(options: list[Candidate], path: str, kind: str = "checkpoint") -> Candidate:
    return next(c for c in options if c.path == path and c.rewrite.kind == kind)


ALL = {"": 9.0, "0": 6.0, "0.0": 1.0, "0.1": 2.0, "0.2": 3.0, "1": 2.0, "2": 1.0}
NONE = dict.fromkeys(ALL, 0.0)


def test_a_step_takes_as_long_as_the_measured_modules():
    on_device, _ = step_times(ForwardTimes(DeviceRates(), ALL, NONE))
    assert on_device.step_s() == pytest.approx((1 + BACKWARD) * 9.0)
    on_host, _ = step_times(ForwardTimes(DeviceRates(), NONE, ALL))
    assert on_host.step_s() == pytest.approx((1 + HOST_BACKWARD) * 9.0)


def test_recomputation_takes_the_forward_pass_up_to_the_last_kept_tensor():
    of_step, options = step_times(ForwardTimes(DeviceRates(), ALL, NONE))
    block = candidate(options, "0")
    # Its last layer keeps its argument, which is there before that layer is run again.
    assert block.spared == ("0.2",)
    assert of_step.added_s([block]) == pytest.approx(ALL["0.0"] + ALL["0.1"])


def test_the_slower_of_host_and_device_counts():
    times = ForwardTimes(DeviceRates(checkpoint_s=0.5, again_s=0.01), NONE, ALL)
    of_step, options = step_times(times)
    block = candidate(options, "0")
    again = ALL["0"] + 0.5 + 0.01 * block.recomputed_ops
    assert of_step.added_s([block]) == pytest.approx(again)
    hidden, _ = step_times(
        ForwardTimes(times.rates, {path: 100 * s for path, s in ALL.items()}, ALL)
    )
    assert hidden.added_s([block]) < 0.1 * again


def test_nested_checkpoints_cost_the_host_more():
    of_step, options = step_times(ForwardTimes(DeviceRates(checkpoint_s=0.5), NONE, ALL))
    outer, inner = candidate(options, "0"), candidate(options, "0[0:2]")
    both = of_step.added_s([outer, inner])
    alone = of_step.added_s([outer]) + of_step.added_s([inner])
    assert both == pytest.approx(alone + inner.wrapped_s)
    assert inner.wrapped_s == pytest.approx(0.25)


def test_norms_of_single_items_take_as_long_for_one_as_for_many():
    class Norms(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.GELU())

    def norm_s(batch: int) -> float:
        model, spec = Norms(), Spec((batch, 1, 512, 512))
        step = ModelStep(model, "training")
        seen = study_step(step, [spec], Workspaces.allowance())
        flops = flops_by_module(step, [spec])
        return StepTimes.of(seen, ModuleOrder(model), flops, ForwardTimes(DeviceRates())).device_of[
            "1"
        ]

    # Each channel of each item is one block's work: a few of them leave most of a device idle.
    one = pytest.approx(4 * 512 * 512 / DeviceRates().channel_bytes_per_s, rel=1e-3)
    assert norm_s(1) == one
    assert norm_s(4) == one
    assert norm_s(4000) > 2 * norm_s(1)
