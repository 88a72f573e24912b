"""Every method of the pack, over the cases in `cases.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from maxslices import registry
from maxslices.testing import MethodConformance
from maxslices_methods import _threads

from .cases import CASES, GPU_CASES, PACKAGE


class TestPack(MethodConformance):
    package = PACKAGE
    cases = CASES
    gpu_cases = GPU_CASES

    # The cases' axis, which is not on detectors of a few columns.
    @pytest.mark.filterwarnings("ignore:the axis at center:UserWarning")
    def test_estimate_at_random_shapes(
        self, tried_method: str, max_slices: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With one thread: of few small slices, it is up to the load whether two peaks meet."""
        monkeypatch.setattr(_threads, "MAX_WORKERS", 1)
        super().test_estimate_at_random_shapes(tried_method, max_slices)


@pytest.mark.parametrize("dtype", ["uint16", "float64"])
@pytest.mark.parametrize("name", ["total_variation_rof", "total_variation_pd", "fbp"])
def test_other_dtypes_are_computed_as_float32(name, dtype):
    data = (np.random.default_rng(0).random((31, 5, 24)) * 1000).astype(dtype)
    parameters = {"angles": np.linspace(0, np.pi, 31)} if name == "fbp" else {"iterations": 3}
    function = registry.get(name).function
    result = function(data, **parameters)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, function(data.astype(np.float32), **parameters))


@pytest.mark.parametrize("name", ["median_filter", "paganin_filter"])
def test_a_view_is_filtered_as_its_copy(name):
    data = np.random.default_rng(5).random((12, 30, 40), np.float32)
    for view in (data[::2, 3:, 1:-2], data.transpose(2, 0, 1)[::-1, ::2]):
        function = registry.get(name).function
        np.testing.assert_array_equal(function(view), function(view.copy()))
