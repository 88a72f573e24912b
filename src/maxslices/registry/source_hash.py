"""What a function is, beyond its name: hashes of its code, and its package's version."""

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

from ..model.arrays import ArraySpec
from ..system.package_versions import installed_version


def source_hash(function: Callable[..., Any]) -> str:
    """Hash of a function's code and of the modules in its folder.

    The modules in the folder count because methods keep helpers there; what lies further away is
    covered by `package_version`.
    """
    inner, source = _innermost(function), _module_source(function)[0]
    digest = hashlib.sha256(source.encode())
    digest.update(getattr(inner, "__qualname__", repr(type(inner))).encode())
    code = getattr(inner, "__code__", None)
    if code is not None:
        # Tells apart two functions of one name, and code that has no file.
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
    """Text of a value bound to a function: a function by its name and line, an object by type."""
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
        found = getattr(sys.modules.get(top), "__version__", None)
        installed = found if isinstance(found, str) else installed
    return f"{top} {installed}"


def package_of(function: Callable[..., Any]) -> str:
    """Top package that a function is from; "" where it says none."""
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
    name = getattr(module, "__file__", None) or getattr(code, "co_filename", None)
    if not name or not os.path.isfile(name):
        return "", False
    folder, own = os.path.split(name)
    files = {own: os.stat(name)}
    # A script outside a package lies among files that have nothing to do with it.
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
    """Write plain values as JSON text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def plain_value(value: Any) -> Any:
    """Turn a parameter into plain JSON; an array into shape, dtype and a hash of its data."""
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
    if hasattr(value, "shape") and hasattr(
        value, "dtype"
    ):  # on a device: its data are not copied for this
        return f"array {tuple(value.shape)} {value.dtype}"
    if hasattr(value, "__qualname__"):  # a function or class: its repr may hold an address
        return f"{value.__module__}.{value.__qualname__}"
    return f"{type(value).__module__}.{type(value).__qualname__} {value!r}"
