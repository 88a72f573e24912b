"""Every method of the pack, over the cases in `cases.py`."""

from __future__ import annotations

from typing import Any

import pytest

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
