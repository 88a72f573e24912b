"""Memory models by bisection, for memory that no meter sees.

A C library may allocate memory that neither CuPy's pool nor tracemalloc counts. The method is then
run until it fails: with twice as many slices each time, then by bisection; and then with less
memory, which gives a model for planning. All runs are made in another process, so that a crash or a
sticky CUDA error ends that one only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ..devices import Backend
from ..model.arrays import ArraySpec
from ..model.memory_model import MemoryModel
from .bisection_result import Attempt, BisectionResult
from .model_request import ModelRequest
from .trial_process import reference_to
from .trial_runner import TrialRunner
from .trial_worker import TrialJob

Runs = Callable[[int, int], bool | None]
LIMIT_S = 120.0
"""Time for all attempts together. A large method took 26 s on an H200 (docs/estimators.md)."""
FINENESS = 128
"""Bisection ends where success and failure differ by 1/128 or by one slice. Together with `MARGIN`
the answer is 98 to 100 % of what runs."""
MARGIN = 1 / 200
"""Part of the available memory that is left free in every attempt."""
LEAST_MARGIN_BYTES = {"cpu": 2**20, "cuda": 8 * 2**20}
"""Least memory that is left free: the small allocations of a library differ from call to call."""
_CHECKS = 3
"""Slice counts between two points at which the line through them is confirmed. Each costs a call
and about 0.1 s."""
_EXTRA_POINTS = 4
"""Maximum extra points if the line does not hold. Each is a bisection of memory: seven calls."""


def bisect_memory(
    request: ModelRequest,
    backend: Backend,
    *,
    available_bytes: int,
    side: Mapping[str, ArraySpec] | None = None,
    limit_s: float = LIMIT_S,
) -> BisectionResult:
    """Find the most slices that run and their memory, by running a method until it fails.

    Parameters
    ----------
    request : ModelRequest
        The method with its parameters and data; another process must be able to import it.
        No more slices are tried than the scan has.
    backend : Backend
        The device, which the other process uses as well. On a GPU all memory beyond the amount
        allowed is occupied during an attempt; on the CPU the address space is limited.
    available_bytes : int
        Memory that the method may take, input and output included.
    side : mapping, optional
        Flats and darks as `ArraySpec`; their memory is not counted.
    limit_s : float
        Time for all attempts together. When it is up, the largest success is the answer.

    Returns
    -------
    BisectionResult

    Raises
    ------
    EstimatorError
        If the method fails for another reason than a lack of memory, crashes or exceeds the time
        with a single slice, or cannot be imported by another process.

    Notes
    -----
    After the most slices for the memory available, the least memory for one slice is bisected, and
    then lines between the points are confirmed with 2^k + 1 slices, where memory that is rounded up
    to a power of two or to a multiple of 16 is highest above a line.
    """
    margin = max(math.ceil(available_bytes * MARGIN), LEAST_MARGIN_BYTES[backend.kind])
    job = TrialJob(
        method=reference_to(request.meta),
        slice_dim=request.slice_dim,
        other_dims=(int(request.other_dims[0]), int(request.other_dims[1])),
        dtype=np.dtype(request.dtype).str,
        device=backend.name,
        parameters=dict(request.parameters),
        side=dict(side or {}),
    )
    allowed = max(0, available_bytes - margin)
    total = request.most_slices
    attempts: list[Attempt] = []
    with TrialRunner(request.meta, job, limit_s, attempts) as trials:
        n, fails_at, is_settled = _bisect_slices(lambda k: trials.runs(k, allowed), total)
        points: dict[int, int] = {}
        rough: list[tuple[int, int]] = []
        slack = 0
        if n:
            step = max(LEAST_MARGIN_BYTES[backend.kind] // 2, allowed // 1000)
            points, rough, slack = _points(trials.runs, n, allowed, step, fails_at is None)
    output_dtype, output_dims = trials.output or (None, None)
    return BisectionResult(
        n,
        fails_at,
        available_bytes,
        margin,
        tuple((k, points[k] + margin) for k in sorted(points)),
        tuple(rough),
        slack,
        tuple(attempts),
        is_settled,
        output_dtype,
        output_dims,
    )


def _points(
    runs: Runs, most: int, allowed_bytes: int, step_bytes: int, is_loose: bool
) -> tuple[dict[int, int], list[tuple[int, int]], int]:
    """Memory with which some numbers of slices ran.

    Also: neighbouring points between which no line was confirmed, and how much too low lines were.

    Parameters
    ----------
    runs : callable
        ``runs(n_slices, n_bytes)``: whether the method runs; None when the time is up.
    most : int
        Slices that ran with `allowed_bytes`.
    allowed_bytes : int
        All of the memory allowed.
    step_bytes : int
        Resolution of the bisection of memory.
    is_loose : bool
        Whether the scan has no more slices: `most` may need less than `allowed_bytes`, then.
    """
    top = _least(runs, most, 0, allowed_bytes, step_bytes) if is_loose else allowed_bytes
    points = {most: top}
    if most == 1:
        return points, [], 0
    points[1] = _least(runs, 1, 0, top, step_bytes)
    rough: list[tuple[int, int]] = []
    pending, n_extra, slack = [(1, most)], 0, 0
    while pending:
        low, high = pending.pop()
        line = MemoryModel.piecewise([(low, points[low]), (high, points[high])])
        above = high
        for n in _between(low, high):
            expected, limit = line.bytes(n), points[above]
            raised = min(expected + expected // FINENESS, limit)
            answer = runs(n, expected) if expected < limit else True
            if answer is False and (answer := raised == limit or runs(n, raised)):
                slack, expected = max(slack, raised - expected), raised
            if answer:
                points[n], above = min(expected, limit), n
                continue
            if answer is None or n_extra == _EXTRA_POINTS:
                rough.append((low, above))
                break
            n_extra += 1
            points[n] = _least(runs, n, raised, limit, step_bytes)
            slack = max(slack, points[n] - line.bytes(n))
            pending += [(low, n), (n, above)]
            break
    return points, rough, slack


def _between(low: int, high: int) -> list[int]:
    """Slice counts at which a line is confirmed, largest first.

    Each is one more than a round number, where memory that is rounded up is highest above a line.
    """
    powers = [2**k + 1 for k in range(1, high.bit_length()) if low < 2**k + 1 < high]
    if powers:
        last = (high - 2) // 16 * 16 + 1
        powers += [last] if last > powers[-1] else []
        return powers[: -_CHECKS - 1 : -1]
    for step in (2**k for k in range(high.bit_length(), -1, -1)):
        rounded = (high - 2) // step * step
        if rounded >= low:
            return [rounded + 1]
    return []


def _least(runs: Runs, n: int, low: int, high: int, step_bytes: int) -> int:
    """Least memory with which n slices run, by bisection between a failure and a success."""
    while high - low > max(step_bytes, high // FINENESS):
        middle = (low + high) // 2
        answer = runs(n, middle)
        if answer is None:
            break
        low, high = (low, middle) if answer else (middle, high)
    return high


def _bisect_slices(runs: Callable[[int], bool | None], total: int) -> tuple[int, int | None, bool]:
    """Most slices that run, fewest that do not, and whether the bisection was finished.

    Parameters
    ----------
    runs : callable
        ``runs(n_slices)``: whether the method runs; None when the time is up.
    total : int
        Slices of the scan.
    """
    good, bad = 0, None
    while good < total and (bad is None or bad - good > max(1, good // FINENESS)):
        n = min(total, max(1, 2 * good)) if bad is None else (good + bad) // 2
        answer = runs(n)
        if answer is None:
            return good, bad, False
        good, bad = (n, bad) if answer else (good, n)
    return good, bad, True
