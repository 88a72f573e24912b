"""A declared estimator held against a probe."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from maxslices import from_ledger
from maxslices.devices import select_backend
from maxslices.estimate import Chooser, ModelRequest
from maxslices.estimate.comparison import compare
from maxslices.estimate.probed import probe
from maxslices.registry.declaration import describe

DIMS = (101, 97)


def doubled(data):
    return data * np.float32(2)


def estimator(n_results):
    @from_ledger
    def needs(m, shape, dtype):
        m.alloc(shape, dtype)
        for _ in range(n_results):
            m.alloc(shape, "float32")

    return needs


def request_of(n_results):
    meta = describe(
        doubled,
        pattern="projection",
        output_dtype="float32",
        calc_max_slices=estimator(n_results),
    )
    return ModelRequest(meta, 0, DIMS, np.dtype("float32"), {}, 1000)


AVAILABLE_BYTES = 100 * 2 * 4 * DIMS[0] * DIMS[1]


def compared(request, available_bytes=AVAILABLE_BYTES):
    """Probe as a plan does that is asked to, and compare once more."""
    backend = select_backend("cpu")
    Chooser("cpu", backend=backend, available_bytes=available_bytes, forced="probed").choose(
        request
    )
    found = probe(request, backend, available_bytes=available_bytes)
    return compare(request, "cpu", found.model(), available_bytes)


def test_a_right_estimator_agrees():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compared(request_of(1))
    told, warning = found
    assert re.fullmatch(r"its own estimator allows 100 slices where this allows (98|99|100)", told)
    assert warning == ""


@pytest.mark.parametrize(("n_results", "slices"), [(0, 200), (2, 66)])
def test_a_wrong_one_is_warned_of_with_both_numbers(n_results, slices):
    with pytest.warns(UserWarning, match=rf"allows {slices} slices, a probe \d+") as caught:
        _, warning = compared(request_of(n_results))
    assert "doubled" in str(caught[0].message)
    (ratio,) = re.findall(rf"allows {slices} slices, a probe \d+ \((\d\.\d+)\); for", warning)
    assert (float(ratio) > 1) == (n_results == 0)


def test_a_method_that_sample_slices_one_slice_is_held_against_that():
    def brightest(data):
        return float(np.multiply(data, np.float32(2)).max())

    meta = describe(
        brightest,
        pattern="projection",
        side_results=("brightest",),
        sample_slices=lambda n_slices: [n_slices // 2],
        calc_max_slices=from_ledger(lambda m, shape, dtype: m.alloc_bytes(10**6)),
    )
    request = ModelRequest(meta, 0, DIMS, np.dtype("float32"), {}, 1000)
    with pytest.warns(UserWarning, match="allows 1 slices, a probe 1 ") as caught:
        _, warning = compared(request, 10**9)
    assert "for 1 it expects 1.00 MB, measured were" in str(caught[0].message)
    (measured_kb,) = re.findall(r"measured were (\d+\.\d+) kB", warning)
    assert 1 <= float(measured_kb) / (2 * 4e-3 * DIMS[0] * DIMS[1]) < 1.5
