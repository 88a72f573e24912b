"""How long a step takes: device and host at work at the same time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.nn.reduce.candidates import Candidate, candidates
from maxslices.nn.reduce.study import ModuleOrder, study_step
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


def network() -> nn.Sequential:
    block = [nn.Conv2d(3, 32, 3, padding=1), nn.GELU(), nn.Conv2d(32, 32, 3, padding=1)]
    return nn.Sequential(nn.Sequential(*block), nn.GELU(), nn.Conv2d(32, 3, 1))


def made(times: ForwardTimes) -> tuple[StepTimes, list[Candidate]]:
    model, spec = network(), Spec((8, 3, 64, 64))
    step = ModelStep(model, "training")
    seen = study_step(step, [spec], Workspaces.allowance())
    flops = flops_by_module(step, [spec])
    of_step = StepTimes.of(seen, ModuleOrder(model), flops, times)
    found = candidates(seen, model, ("checkpoint", "selective", "offload"))
    price(found, of_step, flops, times)
    return of_step, found


def candidate(found: list[Candidate], path: str, kind: str = "checkpoint") -> Candidate:
    return next(c for c in found if c.path == path and c.rewrite.kind == kind)


ALL = {"": 9.0, "0": 6.0, "0.0": 1.0, "0.1": 2.0, "0.2": 3.0, "1": 2.0, "2": 1.0}
NONE = dict.fromkeys(ALL, 0.0)


def test_a_step_is_as_long_as_what_was_measured_of_its_modules():
    on_device, _ = made(ForwardTimes(DeviceRates(), ALL, NONE))
    assert on_device.step_s() == pytest.approx((1 + BACKWARD) * 9.0)
    on_host, _ = made(ForwardTimes(DeviceRates(), NONE, ALL))
    assert on_host.step_s() == pytest.approx((1 + HOST_BACKWARD) * 9.0)


def test_what_is_computed_again_takes_its_forward_pass_but_for_what_nothing_is_kept_of():
    of_step, found = made(ForwardTimes(DeviceRates(), ALL, NONE))
    block = candidate(found, "0")
    # Its last layer keeps its argument, which is there before that layer is run again.
    assert block.spared == ("0.2",)
    assert of_step.added_s([block]) == pytest.approx(ALL["0.0"] + ALL["0.1"])


def test_where_the_host_is_behind_its_time_counts():
    times = ForwardTimes(DeviceRates(checkpoint_s=0.5, again_s=0.01), NONE, ALL)
    of_step, found = made(times)
    block = candidate(found, "0")
    again = ALL["0"] + 0.5 + 0.01 * block.recomputed_ops
    assert of_step.added_s([block]) == pytest.approx(again)
    hidden, _ = made(ForwardTimes(times.rates, {path: 100 * s for path, s in ALL.items()}, ALL))
    assert hidden.added_s([block]) < 0.1 * again


def test_what_is_inside_costs_the_host_more():
    of_step, found = made(ForwardTimes(DeviceRates(checkpoint_s=0.5), NONE, ALL))
    outer, inner = candidate(found, "0"), candidate(found, "0[0:2]")
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
