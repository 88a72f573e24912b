"""The slices that fit, by trying: for memory that no meter sees.

A C library may allocate where neither CuPy's pool nor tracemalloc looks. What is left is to
run the method until it fails: twice as many slices each time, then bisection; and then with
less memory, so that there is a model to plan with. Tries are made in another process: a crash,
or a CUDA error that stays, ends that one.
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
from .trial_worker import TrialJob
from .trials import Trials

Runs = Callable[[int, int], bool | None]
LIMIT_S = 120.0
"""Time for all tries together."""
FINENESS = 128
"""The answer is settled when what ran and what did not differ by this part of it, or by 1."""
MARGIN = 1 / 200
"""Part of the available memory that is left free while it is tried."""
LEAST_MARGIN_BYTES = {"cpu": 2**20, "cuda": 8 * 2**20}
"""The least that is left free: a library's own small allocations are not always the same."""
_CHECKS = 3
"""Points between two others at which it is tried whether a line goes through."""
_SOUGHT = 4
"""Points that are sought where it does not."""


def bisect_memory(
    request: ModelRequest,
    backend: Backend,
    *,
    available_bytes: int,
    side: Mapping[str, ArraySpec] | None = None,
    limit_s: float = LIMIT_S,
) -> BisectionResult:
    """Find how many slices a method can be given, by running it until it fails.

    Parameters
    ----------
    request : ModelRequest
        The method with its parameters and data; another process must be able to import it.
        No more slices are tried than there are.
    backend : Backend
        The device; the other process uses the same. On a GPU all but the memory allowed is
        taken while it is tried, on the CPU the process's address space is limited.
    available_bytes : int
        Memory that the method may take, input and output included.
    side : mapping, optional
        Flats and darks as `ArraySpec`; not counted.
    limit_s : float
        Time for all tries together, in seconds. When it is up, the answer is what ran.

    Returns
    -------
    BisectionResult

    Raises
    ------
    EstimatorError
        If the method fails for another reason than a lack of memory, crashes or takes too
        long on a single slice, or another process cannot import it.

    Notes
    -----
    After the answer for the memory available, less and less of it is tried with one slice, and
    with some numbers of slices between: 2^k + 1, which shows what is rounded up to a power
    of two or to 16.
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
    with Trials(request.meta, job, limit_s, attempts) as trials:
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
    """Return memory with which some numbers of slices ran, and how it goes between them.

    That is: neighbours between which no line was tried, and how much too low lines were.

    Parameters
    ----------
    runs : callable
        Tells whether a number of slices runs in so many bytes; None when the time is up.
    most : int
        Slices that ran with all that is allowed.
    allowed_bytes : int
        That.
    step_bytes : int
        How finely memory is sought.
    is_loose : bool
        Whether more slices might have run with it, so that they need less perhaps.
    """
    top = _least(runs, most, 0, allowed_bytes, step_bytes) if is_loose else allowed_bytes
    points = {most: top}
    if most == 1:
        return points, [], 0
    points[1] = _least(runs, 1, 0, top, step_bytes)
    rough: list[tuple[int, int]] = []
    pending, n_sought, slack = [(1, most)], 0, 0
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
            if answer is None or n_sought == _SOUGHT:
                rough.append((low, above))
                break
            n_sought += 1
            points[n] = _least(runs, n, raised, limit, step_bytes)
            slack = max(slack, points[n] - line.bytes(n))
            pending += [(low, n), (n, above)]
            break
    return points, rough, slack


def _between(low: int, high: int) -> list[int]:
    """Return slice counts at which a line is tried, downward.

    Such as are one more than a round number, where what is rounded up to one is highest.
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
    """Return memory with which n slices run, close to the least, from what did not and did."""
    while high - low > max(step_bytes, high // FINENESS):
        middle = (low + high) // 2
        answer = runs(n, middle)
        if answer is None:
            break
        low, high = (low, middle) if answer else (middle, high)
    return high


def _bisect_slices(runs: Callable[[int], bool | None], total: int) -> tuple[int, int | None, bool]:
    """Return what runs, what does not, and whether that is settled.

    Parameters
    ----------
    runs : callable
        Tells whether a number of slices runs; None when the time is up.
    total : int
        The most that are asked for.
    """
    good, bad = 0, None
    while good < total and (bad is None or bad - good > max(1, good // FINENESS)):
        n = min(total, max(1, 2 * good)) if bad is None else (good + bad) // 2
        answer = runs(n)
        if answer is None:
            return good, bad, False
        good, bad = (n, bad) if answer else (good, n)
    return good, bad, True
