"""The array library of an array: SciPy's modules for NumPy, cupyx's for CuPy."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from array_api_compat import array_namespace, is_cupy_array
from numpy.typing import NDArray


def on_gpu(data: Any) -> bool:
    """True if `data` is a CuPy array."""
    return bool(is_cupy_array(data))


def scipy_module(data: Any, name: str) -> ModuleType:
    """Import ``scipy.<name>``, or ``cupyx.scipy.<name>`` if `data` is a CuPy array."""
    package = "cupyx.scipy" if on_gpu(data) else "scipy"
    return importlib.import_module(f"{package}.{name}")


def to_host(data: Any) -> NDArray[Any]:
    """Copy a CuPy array to the host; a NumPy array is returned as it is."""
    host: NDArray[Any] = data.get() if on_gpu(data) else data
    return host


def to_device_of(data: Any, result: NDArray[Any]) -> Any:
    """Copy a NumPy array to the device of `data`, if that is a CuPy array."""
    return array_namespace(data).asarray(result) if on_gpu(data) else result


__all__ = ["array_namespace", "on_gpu", "scipy_module", "to_device_of", "to_host"]
