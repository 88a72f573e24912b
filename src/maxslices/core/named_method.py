"""Find objects named on the command line: a method, or any object as ``MODULE:NAME``."""

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
        A method's name, or ``module:function``. The function may be a registered one, or any
        function whose first parameter takes the array, which may then be cut along either axis.

    Raises
    ------
    UsageError
        If the module cannot be imported, or does not have the function.
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
        target = import_named(name, "scipy.ndimage:median_filter")
    except UsageError:
        if (full_name := name.replace(":", ".")) in registry:
            return registry.get(full_name)
        raise
    meta = getattr(target, "meta", None)
    if isinstance(meta, MethodMeta):
        return meta
    module_name, _, path = name.partition(":")
    array_module = "torch" if module_name.partition(".")[0] == "torch" else None
    return Registry().register(
        _with_signature(target),
        pattern="all",
        name=path.rpartition(".")[2],
        module=module_name,
        array_module=array_module,
    )


def _with_signature(function: Any) -> Any:
    """The function, wrapped if Python cannot read its signature, as for some C functions."""
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

    Modules may also be in the current folder.

    Parameters
    ----------
    text : str
        Module and name, with a colon between.
    example : str
        Example shown in the error message.

    Raises
    ------
    UsageError
        If the module or the name in it does not exist.
    """
    module_name, colon, name = text.partition(":")
    parts = [*module_name.split("."), *name.split(".")]
    if colon and module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").replace("/", ".").strip(".")
        raise UsageError(f"{text!r} is a file name: write its module, {dotted}:{name}")
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{text!r} is not of the form module:callable, such as {example}")
    target: Any = _module(module_name)
    for part in name.split("."):
        try:
            has_part = hasattr(target, part)
        except Exception as error:  # a module's ``__getattr__``, or a property
            reason = f"{what_raised(error)}{raised_at(error, module_name)}"
            raise UsageError(f"{module_name}:{name} cannot be looked up: {reason}") from error
        if not has_part:
            public = [each for each in dir(target) if not each.startswith("_")]
            similar = [each for each in public if part.lower() in each.lower()][:5]
            similar = similar or get_close_matches(part, public)
            hint = f"; similar names: {', '.join(similar)}" if similar else ""
            raise UsageError(f"{module_name} has no {name}{hint}")
        target = getattr(target, part)
    return target


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
                f"the module {missing!r} cannot be found: install its package, or change to the "
                "folder that contains it"
            ) from None
        raise UsageError(f"{name} needs the module {missing!r}, which is not installed") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an imported module may raise anything
        reason = f"{type(error).__name__}: {first_line(error)}{raised_at(error, name)}"
        raise UsageError(f"{name} cannot be imported: {reason}") from error
    finally:
        if added:
            sys.path.remove(here)


def first_line(error: BaseException) -> str:
    """First line of an error's text."""
    return (text_of(error).splitlines() or ["no message"])[0]
