"""A trace for any number of images."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from maxslices.nn.replay import Scaled, Spec, StepFamily, Workspaces, replay

from .models import UNet

MIB = 2**20


def unet(n, mode="inference", workspaces=None):
    return replay(
        UNet(), Spec((n, 1, 64, 64)), mode=mode, lines=False,
        optimizer=torch.optim.Adam if mode == "training" else None,
        workspaces=workspaces or Workspaces.allowance(),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_lines_through_two_replays_are_a_third_to_the_byte(mode):
    traces = {n: unet(n, mode) for n in (2, 3, 17)}
    scaled = Scaled(traces[2], traces[3], (2, 3))
    assert scaled.matches_replay(traces[17], 17)
    assert scaled.requests(17) == traces[17].requests()


def test_a_family_knows_every_number():
    family = StepFamily(unet)
    assert family.is_linear
    trace = unet(29)
    assert family.allocated_bytes(29) == trace.allocated_bytes
    assert family.needed_bytes(29) == trace.needed_bytes


def test_the_largest_number_fits_and_the_next_does_not():
    family = StepFamily(unet)
    for limit in (300 * MIB, 1000 * MIB, 5000 * MIB):
        n = family.largest(limit)
        assert family.fits(n, limit)
        assert not family.fits(n + 2 + n // 50, limit)
    assert family.largest(20 * MIB) == 0
    assert family.largest(5000 * MIB, at_most=7) == 7


def test_what_is_needed_is_near_what_is_handed_out_and_runs():
    family = StepFamily(lambda n: unet(n, "training"))
    for n in (2, 12, 30):
        needed = family.needed_bytes(n)
        assert family.allocated_bytes(n) <= needed < 1.1 * family.allocated_bytes(n)
        assert all(family.fits(n, needed * (100 + k) // 100) for k in range(0, 40, 5))


def test_sizes_that_are_no_line_are_replayed_one_by_one():
    family = StepFamily(lambda side: replay(lambda x: x * 2, Spec((side, side))))
    assert not family.is_linear
    assert family.allocated_bytes(1000) == 2 * 4_000_256
    # Two of 22 MiB: two of 24 would leave no margin.
    assert family.largest(48 * MIB) == 2401


def test_events_that_change_with_the_number_are_noticed():
    def step(n):
        def function(x):
            return x + 1 if len(x) < 4 else (x + 1) * 2

        return replay(function, Spec((n, 1000)))

    assert not StepFamily(step).is_linear
    with pytest.raises(ValueError, match="the events of the two steps differ"):
        Scaled(step(2), step(5), (2, 5))


def test_batches_of_a_calibrated_work_area_are_interpolated():
    layer = nn.Conv2d(8, 8, 3, padding=1)

    def step(n, workspaces):
        return replay(layer, Spec((n, 8, 64, 64)), workspaces=workspaces)

    (call,) = [c for c in step(2, Workspaces.none()).calls if c.kind == "convolution"]
    workspaces = Workspaces(
        "test", table={call.signature: ((2, 10 * MIB), (4, 30 * MIB), (8, 50 * MIB))}
    )
    sizes = [workspaces.for_op(step(n, workspaces).calls[0]) / MIB for n in (1, 2, 3, 4, 6, 8, 10)]
    assert sizes == [10, 10, 20, 30, 40, 50, 62.5]
    plain = json.loads(json.dumps(asdict(workspaces)))
    assert asdict(Workspaces.from_plain(plain)) == asdict(workspaces)
    (call,) = workspaces.missing(step(3, workspaces).calls)
    assert call.batch == 3
    assert workspaces.missing(step(4, workspaces).calls) == []


def test_by_chance_a_number_must_fit_whatever_the_workspaces_are():
    family = StepFamily(unet)
    fine = {*range(1, 41), 50, 60}
    family.fits = family.is_steady = lambda n, _limit: n in fine
    # A storage and, beyond 50 images, another that fits only if the workspace exists.
    workspace, needs = 200 * MIB, 300 * MIB
    family.requests = lambda n: [
        (-1, workspace),
        (0, needs),
        (-1, -1),
        (1, needs),
        (2, workspace * (n > 50)),
    ]
    limit = workspace + 2 * needs
    assert family.largest(limit) == 50


def test_other_workspaces_need_no_other_replay():
    replayed = []

    def step(n):
        replayed.append(n)
        return unet(n)

    family = StepFamily(step)
    bare = family.with_workspaces(Workspaces.none())
    assert bare.requests(29) == unet(29, workspaces=Workspaces.none()).requests()
    assert bare.allocated_bytes(29) < family.allocated_bytes(29)
    assert {call.batch for call in bare.calls(29)} >= {29}
    assert replayed == [2, 3, 5]


def test_room_for_one_more_segment_is_left_and_of_little_memory_a_hundredth():
    family = StepFamily(unet)
    seen = []
    family.is_steady = lambda n, limit: seen.append(limit) is None
    for limit, least in ((5000 * MIB, 4980 * MIB), (1000 * MIB, 990 * MIB)):
        seen.clear()
        family.largest(limit, 3)
        assert min(seen) == least


def test_a_number_must_run_in_later_steps_too():
    """Of a window attention the outputs of two passes are of sizes that leave gaps behind."""
    family = StepFamily(unet)
    fine = family.largest(5000 * MIB)
    family.is_steady = lambda n, _limit: n <= fine - 3
    assert family.largest(5000 * MIB) == fine - 3
