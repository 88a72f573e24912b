"""Every method of the pack, over all cases."""

from __future__ import annotations

from maxslices.testing import MethodConformance

from .pack import PACKAGE, collect


class TestPack(MethodConformance):
    package = PACKAGE
    cases = collect("CASES")
    gpu_cases = collect("GPU_CASES")
