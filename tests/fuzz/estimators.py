"""Random estimators, most not monotone. They are rejected, or no plan depends on the fault."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from maxslices import ArraySpec, Pipeline, Registry, method, plan
from maxslices.core.block_memory import PYTHON_BYTES

from .child import Difference, Outcome, cases

N_LOOKED_AT, WIDE = 100, 5
"""Amounts of memory that are checked after planning, and how many of them in a row must be wrong. A
plan checks 65, and can miss narrow dips."""
Answer = Callable[[int], int]
"""An estimator: slices that fit into some bytes."""


def draw_answer(random_: random.Random, slice_bytes: int, most: int) -> Answer:
    """Draw a correct estimator, and add up to three common faults."""
    each = random_.randint(2, 6) * slice_bytes
    fixed = random_.choice((0, random_.randint(0, 5 * slice_bytes)))
    answer: Answer = lambda available: max(0, available - fixed) // each  # noqa: E731
    for _ in range(random_.choice((0, 1, 1, 1, 2, 3))):
        answer = random_.choice(_FAULTS)(answer, random_, slice_bytes, most)
    return answer


def _hump(answer: Answer, random_: random.Random, slice_bytes: int, most: int) -> Answer:
    at, part = random_.randint(most // 4, most), random_.uniform(0.1, 0.9)
    return lambda available: answer(available) if available < at else int(answer(available) * part)


def _dip(answer: Answer, random_: random.Random, slice_bytes: int, most: int) -> Answer:
    at, width = random_.randint(most // 4, most), random_.randint(most // 20, most // 2)
    return lambda a: answer(a) // 2 if at <= a < at + width else answer(a)


def _saw(answer: Answer, random_: random.Random, slice_bytes: int, most: int) -> Answer:
    step, depth = random_.randint(slice_bytes, 9 * slice_bytes), random_.randint(1, 6)
    return lambda a: max(0, answer(a) - depth * (a % step) // step)


def _wraps(answer: Answer, random_: random.Random, slice_bytes: int, most: int) -> Answer:
    period = random_.randint(most // 2, 2 * most)  # as an integer of too few bits does
    return lambda available: answer(available % period)


def _packs(answer: Answer, random_: random.Random, slice_bytes: int, most: int) -> Answer:
    pack = random_.choice((2, 4, 16))
    return lambda available: answer(available) // pack * pack  # monotone, and fine


def _bounded(answer: Answer, random_: random.Random, slice_bytes: int, most: int) -> Answer:
    bound = random_.randint(1, 200)
    return lambda available: min(bound, answer(available))  # monotone, and fine


_FAULTS = (_hump, _dip, _saw, _wraps, _packs, _bounded)


def plan_with(random_: random.Random) -> None:
    """Plan with a random estimator, and compare the plan with the estimator."""
    shape = tuple(random_.randint(1, high) for high in (90, 256, 250))
    spec = ArraySpec(shape, random_.choice(("uint16", "float32")))
    slice_bytes = spec.with_slices(0, 1).nbytes
    memory = random_.randint(2, 100) * slice_bytes + 2**22 + PYTHON_BYTES
    answer = draw_answer(random_, slice_bytes, memory)

    def calc_max_slices(slice_dim, other_dims, dtype, available_memory, device="cuda"):
        return answer(available_memory), np.dtype("float32")

    registry = Registry()
    method("projection", calc_max_slices=calc_max_slices, registry=registry)(_same)
    planned = plan(spec, Pipeline.from_steps(["_same"], registry), device="cpu", memory=memory)
    (section,) = planned.sections
    block, available = section.block, section.available_bytes
    needed = section.steps[0].estimated_bytes
    for n_bytes in (
        needed,
        needed + available - section.estimated_bytes,
    ):  # exact, and all that is free
        if answer(n_bytes) < block:
            raise Difference(
                f"a block of {block} is planned to take {needed} of {available} bytes; the "
                f"estimator says {answer(n_bytes)} for {n_bytes}: {shape}"
            )
    least = next(n for n in range(0, available, slice_bytes // 4 or 1) if answer(n) >= block)
    amounts = np.linspace(least, available, N_LOOKED_AT).astype(int).tolist()
    answers = [answer(amount) for amount in amounts]
    for first in range(N_LOOKED_AT - WIDE):
        if max(answers[first : first + WIDE]) < block:
            raise Difference(
                f"a block of {block} is planned with {available} bytes; the estimator says "
                f"{answer(least)} for {least}, and {answers[first]} for {amounts[first]}: {shape}"
            )


def _same(data):
    return data


def estimator_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Plan with random estimators."""
    return cases(kind, seed, plan_with)
