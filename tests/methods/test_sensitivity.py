"""A wrong estimator of any method of the pack would be noticed: it is made wrong, and is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from maxslices.checking.estimate_check import check_call
from maxslices.checking.measured_call import MeasuredCall
from maxslices.model.ledger import Ledger, LedgerEstimator
from maxslices.registry.method_meta import MethodMeta
from maxslices.registry.method_registry import registry
from maxslices.testing import Case

from .pack import collect

CASES = collect("CASES")
FIRST = {case.method: case for case in reversed(CASES)}


def make_wrong(meta: MethodMeta, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a method's ledger count every allocation times `factor`."""
    estimator = meta.estimator
    assert isinstance(estimator, LedgerEstimator), f"{meta.full_name} has no ledger"
    account = estimator.function

    class Scaled(Ledger):
        __slots__ = ()

        def alloc_bytes(self, n_bytes: int) -> Any:
            return super().alloc_bytes(int(n_bytes * factor))

    def wrong(m: Ledger, *args: Any, **kwargs: Any) -> None:
        inner = Scaled(m.device)
        account(inner, *args, **kwargs)
        m.free(m.alloc_bytes(inner.peak_bytes))

    monkeypatch.setattr(estimator, "function", wrong)


def measured_call(meta: MethodMeta, case: Case) -> MeasuredCall:
    slice_dim = meta.slice_dims()[0] if case.slice_dim is None else case.slice_dim
    dtype = np.dtype(case.dtype)
    return MeasuredCall(meta, case.shape, dtype, slice_dim, "cpu", case.parameters, case.make_data)


@pytest.mark.parametrize("factor, verdict", [(1.3, "OVERESTIMATE"), (0.7, "UNDERESTIMATE")])
@pytest.mark.parametrize("name", sorted(FIRST))
def test_thirty_percent_are_noticed(
    name: str, factor: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = registry.get(name)
    make_wrong(meta, factor, monkeypatch)
    result = check_call(measured_call(meta, FIRST[name]), trace=False)
    assert result.verdict == verdict, str(result)
