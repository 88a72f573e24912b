"""Keys of records: a measurement is valid for the same code, parameters, data and device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ..devices import Backend
from ..devices.backend import device_name
from ..system.packages import installed_version, required_versions
from .model_request import ModelRequest
from .source_hash import (
    imports_torch,
    package_of,
    package_version,
    plain_value,
    source_hash,
)


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A request without its number of slices, in plain values: equal requests have equal keys."""

    method: str
    """Full name."""
    source: str
    """Hash of its source."""
    package: str
    """Its package, with the version."""
    parameters: dict[str, Any]
    """All of them, with the values that are not given."""
    slice_dim: Literal[0, 1]
    other_dims: tuple[int, int]
    dtype: str
    side: dict[str, str]
    """Number and dtype of flats, darks and angles, by their names."""

    @property
    def name(self) -> str:
        """Plain name of the method."""
        return self.method.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a method runs."""

    device: str
    """Name of the device."""
    libraries: dict[str, str]
    """Versions of its libraries."""


def request_key(request: ModelRequest, supplied: Mapping[str, Any] | None = None) -> RequestKey:
    """Key of a request: of flats, darks and angles, or their `ArraySpec`, shape and dtype count."""
    meta = request.meta
    rows, columns = map(int, request.other_dims)
    return RequestKey(
        method=meta.full_name,
        source=source_hash(meta.function),
        package=package_version(meta.function),
        parameters=plain_value(meta.merged(**request.parameters)),
        slice_dim=0 if request.slice_dim == 0 else 1,
        other_dims=(rows, columns),
        dtype=str(np.dtype(request.dtype)),
        side={
            name: f"{value.shape[0]} {np.dtype(value.dtype)}"
            for name, value in sorted((supplied or {}).items())
            if name in meta.supplied and hasattr(value, "shape") and value.shape
        },
    )


def environment(backend: Backend, function: Callable[..., Any]) -> Environment:
    """Device and libraries with which a method runs."""
    versions = libraries(function)
    if backend.kind == "cuda":
        versions |= _cuda_versions()
    if imports_torch(function):
        versions["torch"] = installed_version("torch")
    return Environment(device_name(backend), versions)


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
