"""What a command line names: a method, or any object as ``MODULE:NAME``."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from difflib import get_close_matches
from typing import Any

from ..errors import UnknownMethodError, UsageError
from .author_code import raised_at, text_of, what_raised
from .method_meta import MethodMeta
from .method_registry import Registry, registry


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

        def call(data: Any, **parameters: Any) -> Any:
            return function(data, **parameters)

        call.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
        return functools.update_wrapper(call, function, ("__module__",), ())
    return function


def import_named(text: str, example: str) -> Any:
    """Import the object named ``module:name``.

    Modules are found where Python finds them, and in the current folder.

    Parameters
    ----------
    text : str
        Module and name, with a colon between.
    example : str
        Shown to who wrote something else.

    Raises
    ------
    UsageError
        If there is no such module or name in it.
    """
    module_name, colon, name = text.partition(":")
    parts = [*module_name.split("."), *name.split(".")]
    if colon and module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").replace("/", ".").strip(".")
        raise UsageError(f"{text!r} names a file: write the module, {dotted}:{name}")
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{text!r}: write module:callable, such as {example}")
    found: Any = _module(module_name)
    for part in name.split("."):
        try:
            has_part = hasattr(found, part)
        except Exception as error:  # a module's ``__getattr__``, or a property
            said = f"{what_raised(error)}{raised_at(error, module_name)}"
            raise UsageError(f"{module_name}:{name} cannot be looked up: {said}") from error
        if not has_part:
            offered = [each for each in dir(found) if not each.startswith("_")]
            near = [each for each in offered if part.lower() in each.lower()][:5]
            near = near or get_close_matches(part, offered)
            hint = f"; there is {', '.join(near)}" if near else ""
            raise UsageError(f"{module_name} has no {name}{hint}")
        found = getattr(found, part)
    return found


def _module(name: str) -> Any:
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing == name or name.startswith(f"{missing}."):
            raise UsageError(
                f"there is no module {missing!r}: install its package, or run this in the folder "
                "that it is in"
            ) from None
        raise UsageError(f"{name} needs the module {missing!r}, which is not installed") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a module does when it is imported
        said = f"{type(error).__name__}: {first_line(error)}{raised_at(error, name)}"
        raise UsageError(f"{name} cannot be imported: {said}") from error
    finally:
        if added:
            sys.path.remove(here)


def first_line(error: BaseException) -> str:
    """First line of what an error says."""
    return (text_of(error).splitlines() or ["no message"])[0]
