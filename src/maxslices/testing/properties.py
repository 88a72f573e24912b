"""Random situations for estimators, by Hypothesis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from .check import EstimateError, check_trial

if TYPE_CHECKING:
    from .conformance import MethodConformance, Situation
    from .plugin import MaxSlices

MOST_SLICES = 70
LONGEST_DIM = 80
_REPRODUCIBLE = 1000
"""Examples up to which every run tries the same ones."""


def try_random_situations(
    tests: MethodConformance,
    situations: list[Situation],
    max_slices: MaxSlices,
    n_examples: int,
) -> None:
    """Hold an estimator against the measured peak for random shapes.

    dtype, parameters and axis are those of a situation; a shape for which the method
    itself raises `ValueError` is no legal input, and passed over.
    """
    __tracebackhide__ = True
    options = max_slices.settings

    @settings(
        max_examples=n_examples,
        deadline=None,
        database=None,
        derandomize=options.examples <= _REPRODUCIBLE,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        situation=st.sampled_from(situations),
        n_slices=st.integers(1, MOST_SLICES),
        dims=st.tuples(st.integers(1, LONGEST_DIM), st.integers(1, LONGEST_DIM)),
    )
    def check(situation: Situation, n_slices: int, dims: tuple[int, int]) -> None:
        __tracebackhide__ = True
        shape = list(dims)
        shape.insert(situation.slice_dim, n_slices)
        case = replace(situation.case, shape=(shape[0], shape[1], shape[2]))
        trial = tests.trial(replace(situation, case=case), max_slices)
        try:
            trial.call(trial.on_device(trial.data()))
        except ValueError:
            assume(False)
        result = check_trial(trial, options.lower, options.upper, trace=None)
        if not result.ok:
            raise EstimateError(result)

    check()
