"""A method by name, or any function as ``MODULE:CALLABLE``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import UnknownMethodError, UsageError
from .method_meta import MethodMeta
from .method_registry import Registry, registry
from .named_object import import_named


def method_named(name: str) -> MethodMeta:
    """Find a registered method, or import a function and describe it as one.

    Parameters
    ----------
    name : str
        A method's name, or ``module:function``: a registered one, also under another name than the
        function's, or any function whose first parameter takes the array; it may be cut along
        either axis.

    Raises
    ------
    UsageError
        If the module cannot be imported, or has no such function.
    RegistrationError
        If the function cannot be called with an array and keywords.
    """
    if ":" not in name:
        try:
            return registry.get(name)
        except UnknownMethodError as error:
            module, _, function = name.rpartition(".")
            if not module:
                raise
            raise UnknownMethodError(f"{error}; for any function: {module}:{function}") from None
    try:
        found = import_named(name, "scipy.ndimage:median_filter")
    except UsageError:
        if (full_name := name.replace(":", ".")) in registry:
            return registry.get(full_name)
        raise
    meta = getattr(found, "meta", None)
    if isinstance(meta, MethodMeta):
        return meta
    module_name, _, path = name.partition(":")
    array_module = "torch" if module_name.partition(".")[0] == "torch" else None
    return Registry().register(
        _with_signature(found),
        pattern="all",
        name=path.rpartition(".")[2],
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
        return _Caller(function)
    return function


class _Caller:
    """Calls a function; messages name the function's own line, if it has one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.func = function
        self.__module__ = getattr(function, "__module__", "")

    def __call__(self, data: Any, **parameters: Any) -> Any:
        return self.func(data, **parameters)
