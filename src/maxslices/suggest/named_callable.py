"""A method by name, or any function as ``MODULE:CALLABLE``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from ..registry.method_meta import MethodMeta
from ..registry.method_registry import Registry, registry


def method_named(name: str) -> MethodMeta:
    """Find a registered method, or import a function and describe it as one.

    Parameters
    ----------
    name : str
        A method's name, or ``module:function``: a function whose first parameter takes the array.
        It may be cut along either axis.

    Raises
    ------
    UsageError
        If the module cannot be imported, or has no such function.
    RegistrationError
        If the function cannot be called with an array and keywords.
    """
    module_name, colon, path = name.partition(":")
    if not colon:
        return registry.get(name)
    found: Any
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"{name}: {module_name} cannot be imported: {error}") from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{name}: {getattr(found, '__name__', found)} has no {part!r}")
        found = getattr(found, part)
    plain = path.rpartition(".")[2]
    array_module = "torch" if module_name.partition(".")[0] == "torch" else None
    return Registry().register(
        _with_signature(found),
        pattern="all",
        name=plain,
        module=module_name,
        array_module=array_module,
    )


def _with_signature(function: Any) -> Any:
    """The function, or one that calls it where Python cannot read its signature, as in C code."""
    if not callable(function):
        return function
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        return _called(function)
    return function


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(data: Any, **parameters: Any) -> Any:
        return function(data, **parameters)

    return call
