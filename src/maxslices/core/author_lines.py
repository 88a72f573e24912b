"""File and line of the code that the author of a method wrote, for messages."""

from __future__ import annotations

import inspect
import os
import traceback
from types import CodeType
from typing import Any


def defined_at(function: Any) -> str:
    """Where a function is defined, as `` (file:line)``; empty for compiled code."""
    code = _code(function)
    return "" if code is None else _place(code.co_filename, code.co_firstlineno)


def what_raised(error: BaseException) -> str:
    """Kind and text of an error that an author's code raised, in one line that can be printed."""
    text = " ".join(text_of(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """What an error says, without control characters; empty if its author's ``__str__`` fails."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an author's code
        return ""
    return "".join(c if c.isprintable() or c.isspace() else " " for c in said)


_LONGEST = 1000
"""Characters of an error's text: a screen of 80 columns shows these in half of its lines."""


def raised_at(error: BaseException, function: Any) -> str:
    """Where a function's package raised an error, as `` (file:line)``.

    What a library raises counts for the line that called it. Where no line of the package is in
    the traceback, as if a call does not match, this is where the function is defined.

    Parameters
    ----------
    error : BaseException
        As it was caught.
    function : callable or str
        What was called; or the module that was imported.
    """
    code = None if isinstance(function, str) else _code(function)
    name = function if isinstance(function, str) else getattr(function, "__module__", None)
    package = str(name).partition(".")[0]
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == package or (code and file == code.co_filename):
            found = _place(file, line)
    return found or defined_at(function)


def _code(function: Any) -> CodeType | None:
    """Code of a function, whatever it is wrapped in: a partial, an object, a ledger."""
    function = inspect.unwrap(function)
    for _ in range(3):  # a partial of an object that is called
        if inspect.isfunction(function) or inspect.ismethod(function):
            return function.__code__
        inner = getattr(function, "func", getattr(function, "function", None))
        function = inner or getattr(type(function), "__call__", None)  # noqa: B004 - its code
    return None


def _place(file: str, line: int) -> str:
    """A line in a file, whose path is short in the folder one is in."""
    near = os.path.relpath(file)
    return f" ({file if near.startswith(os.pardir) else near}:{line})"
