"""The array library of an array: SciPy's modules for NumPy, cupyx's for CuPy."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from array_api_compat import array_namespace, is_cupy_array


def on_gpu(data: Any) -> bool:
    """True if `data` is a CuPy array."""
    return bool(is_cupy_array(data))


def scipy_module(data: Any, name: str) -> ModuleType:
    """Import ``scipy.<name>``, or ``cupyx.scipy.<name>`` if `data` is a CuPy array."""
    package = "cupyx.scipy" if on_gpu(data) else "scipy"
    return importlib.import_module(f"{package}.{name}")


__all__ = ["array_namespace", "on_gpu", "scipy_module"]
