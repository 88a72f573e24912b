"""Ladders climbed on functions instead of methods, as `probe` climbs them."""

from __future__ import annotations

from typing import NamedTuple

from maxslices.estimate.ladder import Ladder
from maxslices.model.memory_model import MemoryModel

MIB = 2**20
SLICE = 1_000_003
TOTAL = 2160


class Climbed(NamedTuple):
    """What came of it."""

    ladder: Ladder
    rungs: list[int]
    elapsed_s: float
    answer: int


def exact_ladder(available, *, total=TOTAL, limit_s=1e9, quick_s=1e9):
    """Return one for bytes that are known exactly."""
    return Ladder(
        available,
        total,
        run_bytes=available,
        noise_bytes=0,
        floor_bytes=SLICE,
        limit_s=limit_s,
        quick_s=quick_s,
    )


def gpu_ladder(available, *, limit_s=2.5, quick_s=0.1):
    """Return one as for a method on an H200."""
    return Ladder(
        available,
        TOTAL,
        run_bytes=139 * 10**9,
        noise_bytes=8192,
        floor_bytes=1801 * 2560 * 4,
        rounding_bytes=8192,
        limit_s=limit_s,
        quick_s=quick_s,
    )


def climb(ladder, needs, seconds=lambda n: 0.0, *, elapsed_s=0.0, held_to=None):
    """Run rungs until it is time to stop; those that need more than `held_to` run out."""
    rungs, rung = [], 1
    while rung is not None:
        rungs.append(rung)
        elapsed_s += seconds(rung)
        if held_to is not None and needs(rung) > held_to:
            ladder.failed(rung)
        else:
            ladder.add(rung, needs(rung), seconds(rung))
        rung = ladder.next_rung(elapsed_s) if ladder.has_points else None
    model = MemoryModel.piecewise(ladder.curve())
    answer = model.max_slices(ladder.available_bytes, ladder.total_slices)
    return Climbed(ladder, rungs, elapsed_s, answer)


def most(needs, available, total=TOTAL):
    """Return the most slices of which that many, and any fewer, fit."""
    return next((n for n in range(total) if needs(n + 1) > available), total)
