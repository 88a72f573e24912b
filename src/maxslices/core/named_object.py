"""Import of what a command line names as ``package.module:callable``."""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from typing import Any

from ..errors import UsageError
from .author_lines import raised_at, text_of, what_raised


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
