"""A wrong estimator of any method of the pack would be noticed: it is made wrong, and is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from maxslices.checking.estimate_check import check_trial, compare, trial_of, unmetered_bytes
from maxslices.core.ledger import Ledger, LedgerEstimator, from_ledger
from maxslices.core.method_meta import MethodMeta
from maxslices.core.method_registry import registry
from maxslices.estimate import ModelRequest

from .cases import CASES

FIRST = {case.method: case for case in reversed(CASES)}


def made_wrong(meta: MethodMeta, factor: float) -> MethodMeta:
    """Return the method with an estimator that counts every byte times `factor`."""
    callback = meta.callbacks["calc_max_slices"]
    estimator = callback.function
    if isinstance(estimator, LedgerEstimator):
        wrong: Any = from_ledger(scaled(estimator.function, factor))
    else:

        @functools.wraps(estimator)
        def wrong(
            slice_dim: Any, dims: Any, dtype: Any, available_memory: int, **given: Any
        ) -> Any:
            return estimator(slice_dim, dims, dtype, int(available_memory / factor), **given)

    callbacks = {**meta.callbacks, "calc_max_slices": replace(callback, function=wrong)}
    return replace(meta, estimator=wrong, callbacks=callbacks)


def scaled(account: Callable[..., None], factor: float) -> Callable[..., None]:
    """Return a ledger function that counts every allocation of another times `factor`."""

    class Scaled(Ledger):
        __slots__ = ()

        def alloc_bytes(self, n_bytes: int) -> Any:
            return super().alloc_bytes(int(n_bytes * factor))

    @functools.wraps(account)
    def wrong(m: Ledger, *args: Any, **kwargs: Any) -> None:
        inner = Scaled(m.device)
        account(inner, *args, **kwargs)
        m.free(m.alloc_bytes(inner.peak_bytes))

    return wrong


@pytest.mark.parametrize("name", sorted(FIRST))
def test_thirty_percent_are_noticed(name: str) -> None:
    case, meta = FIRST[name], registry.get(name)
    slice_dim = meta.slice_dims()[0] if case.slice_dim is None else case.slice_dim
    trial = trial_of(meta, case.spec, slice_dim, "cpu", case.parameters, case.make_data)
    right = check_trial(trial, trace=False)
    dims = case.spec.other_dims(slice_dim)
    own = trial.own_parameters
    request = ModelRequest(meta, slice_dim, dims, case.spec.dtype, own, trial.n_slices)
    # Wrong ledgers do not tell the memory of libraries apart.
    peak_bytes = right.peak_bytes + unmetered_bytes(request)
    for factor, verdict in ((1.3, "OVERESTIMATE"), (0.7, "UNDERESTIMATE")):
        wrong = replace(request, meta=made_wrong(meta, factor))
        result = compare(wrong, "cpu", peak_bytes)
        assert result.verdict == verdict, str(result)
