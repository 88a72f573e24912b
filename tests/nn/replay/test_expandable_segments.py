"""torch's allocator with expandable segments, simulated: sequences worked out by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from maxslices.nn.reduce.search import ReductionPlan
from maxslices.nn.replay import Spec, Workspaces
from maxslices.nn.replay.expandable_segments import ExpandableAllocator, least_expandable_limit
from maxslices.nn.step.model_step import ModelStep

MIB = 2**20


def ran(steps: list[tuple[int, float]], limit: float | None = None) -> ExpandableAllocator | None:
    """Run steps in MiB; return the allocator, or None if memory does not suffice."""
    allocator = ExpandableAllocator(None if limit is None else int(limit * MIB))
    has_fit = allocator.run([(key, int(size * MIB) if size > 0 else -1) for key, size in steps])
    return allocator if has_fit else None


def reserved(steps: list[tuple[int, float]], limit: float | None = None) -> float | None:
    allocator = ran(steps, limit)
    return None if allocator is None else allocator.peak_reserved_bytes / MIB


@pytest.mark.parametrize(
    ("steps", "mib"),
    [
        # Memory comes in pages, and small blocks have their own.
        ([(0, 5)], 20), ([(0, 5), (1, 15)], 20), ([(0, 5), (1, 16)], 40),
        ([(0, 0.5)], 2), ([(0, 1.5), (1, 0.5)], 20 + 2),
        # A free part at the end grows. One of 30 in the middle does not: 50 go behind it.
        ([(0, 30), (0, -1), (1, 50)], 60), ([(0, 30), (1, 30), (0, -1), (2, 50)], 120),
        # Free are 60 in the middle, and 20 before addresses without memory, which are left for
        # larger blocks: 15 go into the 60, so that the next 60 have to go behind.
        ([(0, 60), (1, 20), (2, 20), (0, -1), (2, -1), (3, 15), (4, 60)], 140),
    ],
)  # fmt: skip
def test_pages_are_taken_as_worked_out_by_hand(steps, mib):
    assert reserved(steps) == mib


def test_pages_that_hold_nothing_are_given_back_where_room_is_needed():
    steps = [(0, 40), (1, 40), (0, -1), (2, 60)]
    assert reserved(steps) == 140
    allocator = ran(steps, 100)
    assert allocator is not None
    assert (allocator.retries, allocator.reserved_bytes / MIB) == (1, 100)
    assert ran(steps, 99) is None
    # Of the first three pages, one is begun by the second block and stays.
    assert ran([(0, 50), (1, 30), (0, -1), (2, 60)], 100) is not None
    assert ran([(0, 50), (1, 30), (0, -1), (2, 60)], 98) is None


def test_room_for_all_of_a_block_is_asked_for_even_where_some_is_there():
    # 40 of the 60 are there, free and next to the end; torch asks whether 60 more would do.
    steps = [(0, 40), (0, -1), (1, 60)]
    allocator = ran(steps, 60)
    assert allocator is not None
    assert allocator.retries == 1
    allocator = ran(steps, 100)
    assert allocator is not None
    assert allocator.retries == 0
    # And for 20 where 5 are wanted: that is how much comes.
    assert ran([(0, 16), (1, 5)], 39) is None
    assert ran([(0, 16), (1, 5)], 40) is not None


def test_the_least_limit_is_the_least_that_does():
    steps = [
        (key, int(size * MIB) if size > 0 else -1)
        for key, size in [(0, 50), (1, 30), (0, -1), (2, 60), (3, 7), (2, -1), (4, 64), (1, -1)]
    ]
    least = least_expandable_limit(steps, 97 * MIB)
    assert ExpandableAllocator(least).run(steps)
    assert not ExpandableAllocator(least - 2 * MIB).run(steps)


def test_a_step_needs_what_is_in_use_and_begun_pages(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(6)))
    trace = ModelStep(model, "training").trace([Spec((7, 8, 300, 300))], Workspaces.allowance())
    needed = ReductionPlan([], trace).needed_bytes
    assert trace.peak_bytes < needed < trace.peak_bytes + 12 * 20 * MIB
