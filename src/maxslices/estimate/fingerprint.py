"""Keys of records: a measurement is valid for the same code, parameters, data and device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..devices import Backend
from ..devices.device_name import device_name
from ..registry.source_hash import (
    imports_torch,
    package_of,
    package_version,
    plain_value,
    source_hash,
)
from ..system.package_versions import installed_version, required_versions
from .model_request import ModelRequest


def request_key(request: ModelRequest, supplied: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Describe a request in plain values that JSON can hold: equal requests give equal keys.

    Parameters
    ----------
    request : ModelRequest
        The method with its parameters and data. The number of slices is not part of the key.
    supplied : mapping, optional
        Flats, darks and angles, or their `ArraySpec`: shape and dtype count.
    """
    meta = request.meta
    return {
        "method": meta.full_name,
        "source": source_hash(meta.function),
        "package": package_version(meta.function),
        "parameters": plain_value(meta.merged(**request.parameters)),
        "slice_dim": int(request.slice_dim),
        "other_dims": [int(n) for n in request.other_dims],
        "dtype": str(np.dtype(request.dtype)),
        "side": {
            name: f"{value.shape[0]} {np.dtype(value.dtype)}"
            for name, value in sorted((supplied or {}).items())
            if name in meta.supplied and hasattr(value, "shape") and value.shape
        },
    }


def environment(backend: Backend, function: Callable[..., Any]) -> dict[str, Any]:
    """Describe where a method runs: the device's name and the versions of its libraries."""
    versions = libraries(function)
    if backend.kind == "cuda":
        versions |= _cuda_versions()
    if imports_torch(function):
        versions["torch"] = installed_version("torch")
    return {"device": device_name(backend), "libraries": versions}


def libraries(function: Callable[..., Any]) -> dict[str, str]:
    """Versions of NumPy and of what a method's package requires."""
    return {"numpy": np.__version__} | required_versions(package_of(function))


@lru_cache(maxsize=1)
def _cuda_versions() -> dict[str, str]:
    import cupy

    runtime = cupy.cuda.runtime
    return {
        "cupy": str(cupy.__version__),
        "cuda runtime": str(runtime.runtimeGetVersion()),
        "cuda driver": str(runtime.driverGetVersion()),
    }
