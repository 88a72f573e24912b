"""The cases of all families of the pack."""

from __future__ import annotations

import importlib
import pkgutil

from maxslices.testing import Case

from . import cases

PACKAGE = "maxslices_methods"


def collect(name: str) -> list[Case]:
    """Return the lists of this name of all families."""
    found: list[Case] = []
    for module in pkgutil.iter_modules(cases.__path__):
        found += getattr(importlib.import_module(f"{cases.__name__}.{module.name}"), name)
    return found
