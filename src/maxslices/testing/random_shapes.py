"""Comparison of estimators with measured peaks at random shapes from Hypothesis."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from ..checking.check_result import EstimateError
from ..checking.estimate_check import BUFFERS_BYTES, check_trial
from ..errors import EstimatorError
from ..tuning.garbage_collection import quick_collections

if TYPE_CHECKING:
    from ..checking.case import Situation
    from ..trial.trial import Trial
    from .plugin import MaxSlices

MAX_SLICES = 60
MAX_DIM = 96
"""Largest sizes. Hundreds of calls with 2 MB take seconds, and small odd sizes reveal errors as
well as large ones."""
_MAX_QUICK_EXAMPLES = 1000
"""Largest number of examples that are the same in every run and without shrinking of failures. The
default of 300 is for a test suite. Larger numbers are for a search for rare errors."""


def try_random_shapes(
    trial_of: Callable[[Situation, MaxSlices], Trial],
    situations: list[Situation],
    max_slices: MaxSlices,
    n_examples: int,
    smallest_dim: int = 1,
) -> None:
    """Compare an estimator with the measured peak for random shapes.

    Dtype, parameters and axis come from a situation. Shapes for which the method raises
    `ValueError` are invalid inputs and are skipped. If all shapes are invalid, the test is skipped.
    """
    refused: ValueError | None = None
    options = max_slices.settings
    quick = options.examples <= _MAX_QUICK_EXAMPLES

    @settings(
        max_examples=n_examples,
        deadline=None,
        database=None,
        derandomize=quick,
        phases=[Phase.generate] if quick else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        situation=st.sampled_from(situations),
        n_slices=st.integers(1, MAX_SLICES),
        dims=st.tuples(*[st.integers(smallest_dim, max(smallest_dim, MAX_DIM))] * 2),
    )
    def check(situation: Situation, n_slices: int, dims: tuple[int, int]) -> None:
        shape = list(dims)
        shape.insert(situation.slice_dim, n_slices)
        nonlocal refused
        case = replace(situation.case, shape=(shape[0], shape[1], shape[2]))
        try:
            trial = trial_of(replace(situation, case=case), max_slices)
            result = check_trial(trial, options.lower, options.upper, trace=None)
        except ValueError as error:  # from the method; estimators raise an EstimatorError
            refused = error
            assume(False)
        if result.device == "cpu":
            result = replace(result, resolution_bytes=BUFFERS_BYTES)
        if not result.ok:
            raise EstimateError(result)

    gc.collect()
    try:
        with quick_collections():
            check()
    except Unsatisfiable:
        pytest.skip(
            f"{situations[0].case.method} refuses all random shapes, of up to {MAX_SLICES} slices "
            f"of {MAX_DIM}x{MAX_DIM}: {refused}"
        )
    except EstimatorError as error:
        raise pytest.fail.Exception(
            f"{error}; if it needs larger frames, raise ValueError for smaller ones, or increase "
            f"smallest_dim, now {smallest_dim}, in the class of tests",
            pytrace=False,
        ) from None
    except EstimateError as error:
        max_slices.note(error.result)
        raise pytest.fail.Exception(str(error), pytrace=False) from None
