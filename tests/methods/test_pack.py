"""Every method of the pack, over the cases in `cases.py`."""

from __future__ import annotations

from maxslices.testing import MethodConformance

from .cases import CASES, GPU_CASES, PACKAGE


class TestPack(MethodConformance):
    package = PACKAGE
    cases = CASES
    gpu_cases = GPU_CASES
