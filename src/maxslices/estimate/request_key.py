"""Keys of records: a measurement is valid for the same code, parameters, data and device."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ..core.arrays import ArraySpec
from ..devices import Backend
from ..devices.backend import device_name
from ..system.packages import installed_version, required_versions
from .model_request import ModelRequest


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Request without its number of slices, in plain values. Equal requests have equal keys."""

    method: str
    """Full name."""
    source: str
    """Hash of the method's source."""
    package: str
    """Package of the method, with its version."""
    parameters: dict[str, Any]
    """All parameters, including defaults."""
    slice_dim: Literal[0, 1]
    other_dims: tuple[int, int]
    dtype: str
    side: dict[str, str]
    """Number and dtype of flats, darks and angles, by name."""

    @property
    def name(self) -> str:
        """Plain name of the method."""
        return self.method.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Environment:
    """Device and libraries with which a method runs."""

    device: str
    """Name of the device."""
    libraries: dict[str, str]
    """Versions of the libraries."""


def request_key(request: ModelRequest, supplied: Mapping[str, Any] | None = None) -> RequestKey:
    """Key of a request, with the number and dtype of flats, darks and angles."""
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
    """Versions of NumPy and of the requirements of a method's package."""
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


def source_hash(function: Callable[..., Any]) -> str:
    """Hash of a function's code and of the code that it may call.

    For a package, this includes all modules in the function's folder, where methods keep helpers.
    Code in other folders is covered by `package_version`. For a script, it includes the modules
    that it imports from its folder. For code without a file, such as in a notebook, it includes the
    functions and values that the code names.
    """
    inner, source = _innermost(function), _module_source(function)[0]
    digest = hashlib.sha256(source.encode())
    digest.update(getattr(inner, "__qualname__", repr(type(inner))).encode())
    code = getattr(inner, "__code__", None)
    if code is not None:
        # Distinguishes two functions of the same name, and code without a file.
        digest.update(f"{code.co_firstlineno}".encode())
        if not source or _is_typed(inner):
            digest.update("".join(_typed_texts(inner)).encode())
    bound = [*_bound_by_partial(function), *(cell.cell_contents for cell in _cells(inner))]
    digest.update(canonical([_bound_text(value) for value in bound]).encode())
    return digest.hexdigest()[:32]


def _typed_texts(function: types.FunctionType) -> list[str]:
    """Code of a function without a file, and of the functions, classes and values that it uses."""
    texts: list[str] = []
    waiting: list[Any] = [function]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        inner = _innermost(value) if callable(value) else value
        code = getattr(inner, "__code__", None)
        if inspect.isclass(inner) and _file_of(sys.modules.get(inner.__module__)) is None:
            waiting += [each for _, each in sorted(vars(inner).items()) if callable(each)]
        elif inspect.ismodule(inner):
            texts.append(_imported_source(inner))
        elif code is None or inspect.isclass(inner):
            texts.append(canonical(_bound_text(inner)))
        elif not _is_typed(inner):
            texts.append(_imported_source(sys.modules[inner.__module__]))
        else:
            texts.append(_code_text(code))
            waiting += [
                inner.__globals__[name]
                for name in sorted(_names(code))
                if name in inner.__globals__
            ]
    return texts


def _is_typed(function: types.FunctionType) -> bool:
    """True for a function that was typed into a notebook or at a prompt."""
    return not os.path.isfile(function.__code__.co_filename)


def _file_of(module: types.ModuleType | None) -> str | None:
    return getattr(module, "__file__", None)


def _names(code: types.CodeType) -> set[str]:
    """Names that code looks up, including those in nested functions."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _imported_source(module: types.ModuleType) -> str:
    """Hash of a module in the current folder and its imports from there, else the module's name."""
    folder = os.getcwd()
    files = _imported_files(module, folder)
    return _hash_files(folder, _state(files))[0] if files else module.__name__


def _imported_files(module: types.ModuleType | None, folder: str) -> set[str]:
    """Files in a folder of a module and of the modules that it imports.

    Installed packages are omitted, because their versions are part of the key.
    """
    files: set[str] = set()
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        imported = waiting.pop()
        name = _file_of(imported)
        if imported is None or name is None or id(imported) in seen:
            continue
        seen.add(id(imported))
        name = os.path.abspath(name)
        inside = os.path.relpath(name, folder).split(os.sep)
        is_own = imported.__name__.partition(".")[0] == __name__.partition(".")[0]
        if os.pardir in inside or _INSTALLED.intersection(name.split(os.sep)) or is_own:
            continue
        if name.endswith(".py") and os.path.isfile(name):
            files.add(name)
        for value in list(vars(imported).values()):
            of = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
            if isinstance(of, str) and of in sys.modules:
                waiting.append(sys.modules[of])
    return files


_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders that packages are installed into."""


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
    arguments: list[Any] = []
    while isinstance(function, functools.partial):
        arguments += [*function.args, dict(function.keywords)]
        function = function.func
    return arguments


def _bound_text(value: Any) -> Any:
    """Text of a value bound to a function: name and line of a function, or type of an object."""
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{value.__qualname__} {code.co_firstlineno}"
    try:
        return plain_value(value) if _is_plain(value) else f"{type(value).__qualname__}"
    except RecursionError:
        return f"{type(value).__qualname__}"


def _is_plain(value: Any) -> bool:
    kinds = (bool, int, float, str, list, tuple, set, dict, np.ndarray, np.generic)
    return value is None or isinstance(value, kinds)


def package_version(function: Callable[..., Any]) -> str:
    """Name and version of the package that defines a function."""
    top = package_of(function)
    installed = installed_version(top)
    if installed == "unknown":
        version = getattr(sys.modules.get(top), "__version__", None)
        installed = version if isinstance(version, str) else installed
    return f"{top} {installed}"


def package_of(function: Callable[..., Any]) -> str:
    """Top-level package of a function, or "" if it has no module."""
    return (getattr(_innermost(function), "__module__", None) or "").partition(".")[0]


def imports_torch(function: Callable[..., Any]) -> bool:
    """True if any module in a function's folder imports torch."""
    return _module_source(function)[1]


def _innermost(function: Any) -> Any:
    """Unwrap a partial, a decorated function or an object with ``__call__``."""
    while hasattr(function, "func") or hasattr(function, "__wrapped__"):
        function = getattr(function, "__wrapped__", None) or function.func
    if not hasattr(function, "__code__") and not inspect.isclass(function):
        function = type(function).__call__
    return function


def _module_source(function: Callable[..., Any]) -> tuple[str, bool]:
    """Hash of the modules in a function's folder, and whether any of them imports torch."""
    inner = _innermost(function)
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    code = getattr(inner, "__code__", None)
    # Code that was compiled from a package's source without importing it has a file, too.
    name = getattr(code, "co_filename", None) if module is None else _file_of(module)
    if not name or not os.path.isfile(name):
        return "", False
    folder, own = os.path.split(os.path.abspath(name))
    files = {name}
    # Files next to a script outside a package may be unrelated, so only its imports count.
    in_package = "." in (getattr(inner, "__module__", None) or "") or own == "__init__.py"
    if in_package or getattr(module, "__package__", None):
        with os.scandir(folder) as entries:
            files |= {each.path for each in entries if each.name.endswith(".py")}
    else:
        files |= _imported_files(module, folder)
    return _hash_files(folder, _state(files))


def _state(files: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
    """Path, time and size of files, in the order of their paths."""
    stats = ((each, os.stat(each)) for each in sorted(set(map(os.path.abspath, files))))
    return tuple((each, stat.st_mtime_ns, stat.st_size) for each, stat in stats)


@lru_cache(maxsize=256)
def _hash_files(folder: str, state: tuple[tuple[str, int, int], ...]) -> tuple[str, bool]:
    """Hash of files and their names relative to a folder, and whether any of them imports torch."""
    digest, uses_torch = hashlib.sha256(), False
    for name, _, _ in state:
        with open(name, "rb") as file:
            text = file.read()
        digest.update(os.path.relpath(name, folder or None).encode() + b"\0" + text)
        uses_torch = uses_torch or b"import torch" in text or b"from torch" in text
    return digest.hexdigest(), uses_torch


def canonical(value: Any) -> str:
    """Write plain values as JSON text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def plain_value(value: Any) -> Any:
    """Convert a parameter to plain JSON, and an array to shape, dtype and a hash of its data."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biuf" else str(value)
    if isinstance(value, Mapping):
        return {str(name): plain_value(item) for name, item in sorted(value.items(), key=str)}
    if isinstance(value, set | frozenset):
        return sorted((plain_value(item) for item in value), key=canonical)
    if isinstance(value, list | tuple | range):
        return [plain_value(item) for item in value]
    if isinstance(value, ArraySpec):
        return str(value)
    if isinstance(value, np.ndarray):
        data = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"array {value.shape} {value.dtype} {data}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):  # a device array is not copied
        return f"array {tuple(value.shape)} {value.dtype}"
    if hasattr(value, "__qualname__"):  # a function or class, whose repr may contain an address
        return f"{value.__module__}.{value.__qualname__}"
    return f"{type(value).__module__}.{type(value).__qualname__} {value!r}"
