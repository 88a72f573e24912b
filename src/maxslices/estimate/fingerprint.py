"""What a measurement is valid for: the method's code, its parameters, data and device."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..devices import Backend
from ..model.arrays import ArraySpec
from .model_request import Question
from .package_versions import installed_version, required_versions


def question(asked: Question, supplied: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what is asked about a method, as plain values that JSON can hold.

    Parameters
    ----------
    asked : Question
        The method with its parameters and data. How many slices there are does not matter.
    supplied : mapping, optional
        Flats, darks and angles, or their `ArraySpec`: shape and dtype count.
    """
    meta = asked.meta
    return {
        "method": meta.full_name,
        "source": source_hash(meta.function),
        "package": package_version(meta.function),
        "parameters": _plain(meta.merged(**asked.parameters)),
        "slice_dim": int(asked.slice_dim),
        "other_dims": [int(n) for n in asked.other_dims],
        "dtype": str(np.dtype(asked.dtype)),
        "side": {
            name: f"{value.shape[0]} {np.dtype(value.dtype)}"
            for name, value in sorted((supplied or {}).items())
            if name in meta.supplied and hasattr(value, "shape") and value.shape
        },
    }


def place(backend: Backend, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the device's name and the versions of what runs there."""
    libraries = {"numpy": np.__version__} | required_versions(package_of(function))
    if backend.kind == "cuda":
        libraries |= _cuda_versions()
    if _module_source(function)[1]:
        libraries["torch"] = installed_version("torch")
    return {"device": device_name(backend), "libraries": libraries}


def device_name(backend: Backend) -> str:
    """Return "cpu", or the GPU's name, such as "NVIDIA H200"."""
    if backend.kind == "cpu":
        return "cpu"
    number = int(backend.name.partition(":")[2] or 0)
    return _gpu_name(number)


@lru_cache(maxsize=16)
def _gpu_name(number: int) -> str:
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(number)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


@lru_cache(maxsize=1)
def _cuda_versions() -> dict[str, str]:
    import cupy

    runtime = cupy.cuda.runtime
    return {
        "cupy": str(cupy.__version__),
        "cuda runtime": str(runtime.runtimeGetVersion()),
        "cuda driver": str(runtime.driverGetVersion()),
    }


def source_hash(function: Callable[..., Any]) -> str:
    """Return a hash that changes with the function and the modules beside its own.

    The modules of its package's folder count, because methods have helpers there; what lies
    further away is known by `package_version`.
    """
    inner, source = _innermost(function), _module_source(function)[0]
    digest = hashlib.sha256(source.encode())
    digest.update(getattr(inner, "__qualname__", repr(type(inner))).encode())
    code = getattr(inner, "__code__", None)
    if code is not None:
        # Two functions of one name on different lines; and code without a file.
        digest.update(f"{code.co_firstlineno}".encode())
        if not source:
            digest.update(_code_text(code).encode())
    bound = [*_bound_by_partial(function), *(cell.cell_contents for cell in _cells(inner))]
    digest.update(canonical([_bound_text(value) for value in bound]).encode())
    return digest.hexdigest()[:32]


def _code_text(code: types.CodeType) -> str:
    parts = [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
    for constant in code.co_consts:
        is_code = isinstance(constant, types.CodeType)
        parts.append(_code_text(constant) if is_code else repr(constant))
    return " ".join(parts)


def _cells(function: Any) -> list[types.CellType]:
    cells = getattr(function, "__closure__", None) or ()
    return [cell for cell in cells if cell != types.CellType()]  # an empty one has no contents


def _bound_by_partial(function: Any) -> list[Any]:
    found: list[Any] = []
    while isinstance(function, functools.partial):
        found += [*function.args, dict(function.keywords)]
        function = function.func
    return found


def _bound_text(value: Any) -> Any:
    """Return what a function carries with it: another function by its code, objects by type."""
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{value.__qualname__} {code.co_firstlineno}"
    try:
        return _plain(value) if _is_plain(value) else f"{type(value).__qualname__}"
    except RecursionError:
        return f"{type(value).__qualname__}"


def _is_plain(value: Any) -> bool:
    kinds = (bool, int, float, str, list, tuple, set, dict, np.ndarray, np.generic)
    return value is None or isinstance(value, kinds)


def package_version(function: Callable[..., Any]) -> str:
    """Return name and version of the package that a function is from."""
    top = package_of(function)
    installed = installed_version(top)
    if installed == "unknown":
        found = getattr(sys.modules.get(top), "__version__", None)
        installed = found if isinstance(found, str) else installed
    return f"{top} {installed}"


def package_of(function: Callable[..., Any]) -> str:
    """Top package that a function is from; "" where it says none."""
    return (getattr(_innermost(function), "__module__", None) or "").partition(".")[0]


def _innermost(function: Any) -> Any:
    """Return what a partial, a wrapper or an object with ``__call__`` ends up calling."""
    while hasattr(function, "func") or hasattr(function, "__wrapped__"):
        function = getattr(function, "__wrapped__", None) or function.func
    if not hasattr(function, "__code__") and not inspect.isclass(function):
        function = type(function).__call__
    return function


def _module_source(function: Callable[..., Any]) -> tuple[str, bool]:
    """Return a hash of a function's module and those beside it, and whether they use torch."""
    inner = _innermost(function)
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    code = getattr(inner, "__code__", None)
    name = getattr(module, "__file__", None) or getattr(code, "co_filename", None)
    if not name or not os.path.isfile(name):
        return "", False
    folder, own = os.path.split(name)
    files = {own: os.stat(name)}
    # A module that stands alone may lie among others that have nothing to do with it.
    in_package = "." in (getattr(inner, "__module__", None) or "") or own == "__init__.py"
    if in_package or getattr(module, "__package__", None):
        with os.scandir(folder or ".") as entries:
            files |= {each.name: each.stat() for each in entries if each.name.endswith(".py")}
    return _hash_files(
        folder, tuple((each, s.st_mtime_ns, s.st_size) for each, s in sorted(files.items()))
    )


@lru_cache(maxsize=256)
def _hash_files(folder: str, state: tuple[tuple[str, int, int], ...]) -> tuple[str, bool]:
    digest, uses_torch = hashlib.sha256(), False
    for name, _, _ in state:
        with open(os.path.join(folder, name), "rb") as file:
            text = file.read()
        digest.update(name.encode() + b"\0" + text)
        uses_torch = uses_torch or b"import torch" in text or b"from torch" in text
    return digest.hexdigest(), uses_torch


def canonical(value: Any) -> str:
    """Write plain values so that equal ones are equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Return a parameter as JSON knows it; an array by shape, dtype and a hash of its data."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biuf" else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in sorted(value.items(), key=str)}
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=canonical)
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, ArraySpec):
        return str(value)
    if isinstance(value, np.ndarray):
        data = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"array {value.shape} {value.dtype} {data}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):  # on a device: not fetched for this
        return f"array {tuple(value.shape)} {value.dtype}"
    if hasattr(value, "__qualname__"):  # a function or class: its repr may hold an address
        return f"{value.__module__}.{value.__qualname__}"
    return f"{type(value).__module__}.{type(value).__qualname__} {value!r}"
