"""Tests of all registered methods, without a file of cases: ``pytest --maxslices [PACKAGE]``.

Each method runs with its defaults on a small block of float32. A method that needs a parameter, or
does not run with its defaults, is skipped and needs a `Case` in a file.
"""

from __future__ import annotations

import importlib

import pytest

from ..checking.case import Case
from ..core.method_meta import MethodMeta
from ..core.parameters import check_parameters
from ..errors import UsageError
from .conformance import MethodConformance

SHAPE = (64, 60, 72)
TOLERANCE = 1e-6
"""Allowed difference between blocks, relative to the range: rounding in FFTs depends on the
block."""


def _why_not(meta: MethodMeta) -> str:
    """Reason why a method does not run with its defaults, or empty."""
    faults = [text for _, text in check_parameters(meta.function, {})]
    return "; ".join(f"it {text}" for text in faults) or meta.refusal({}) or ""


class TestRegisteredMethods(MethodConformance):
    """Conformance tests for all registered methods."""

    def _parametrize(self, metafunc: pytest.Metafunc) -> None:
        cls, package = type(self), metafunc.config.getoption("maxslices_of")
        if package:
            try:
                importlib.import_module(package)
            except ImportError as error:
                raise UsageError(f"--maxslices={package}: {error}") from None
        cls.package = package
        cls.cases = [
            Case(meta.full_name, SHAPE, tolerance=TOLERANCE)
            for meta in self.required_methods()
            if not _why_not(meta)
        ]
        super()._parametrize(metafunc)

    @classmethod
    def required_methods(cls) -> list[MethodMeta]:
        """List the methods of the package, or all registered methods."""
        return super().required_methods() if cls.package else list(cls.methods)

    def test_has_a_case(self, required_method: MethodMeta) -> None:
        """Skip a method that cannot run with its defaults."""
        if reason := _why_not(required_method):
            pytest.skip(f"{required_method.name}: {reason}: add a Case to a file of tests")
