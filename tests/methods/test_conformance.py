"""Every method of the pack, over all cases."""

from __future__ import annotations

import importlib
import pkgutil

from maxslices.testing import Case, MethodConformance

from . import cases


def collect(name: str) -> list[Case]:
    """Return the lists of this name of all families."""
    found: list[Case] = []
    for module in pkgutil.iter_modules(cases.__path__):
        found += getattr(importlib.import_module(f"{cases.__name__}.{module.name}"), name)
    return found


class TestPack(MethodConformance):
    package = "maxslices_methods"
    cases = collect("CASES")
    gpu_cases = collect("GPU_CASES")
