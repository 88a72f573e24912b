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

    @pytest.fixture(autouse=True)
    def _one_thread_at_random_shapes(self, request: Any, monkeypatch: Any) -> None:
        """With few small slices, whether the peaks of two threads meet is up to other programs."""
        if request.function.__name__ == "test_estimate_at_random_shapes":
            monkeypatch.setattr(_threads, "MAX_WORKERS", 1)
