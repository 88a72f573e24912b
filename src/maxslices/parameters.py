"""Parameters of methods: what a signature allows, and whether a value is of its type."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, Union

import numpy as np

SUPPLIED = ("flats", "darks", "angles", "slice_dim")
"""Names that the runner fills in: flats and darks as stacks of frames, projection
angles in radians, and the axis along which the block is cut."""


def keyword_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method after its data, by name."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return {
        p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved annotations; those that cannot be resolved are left out."""
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that only the author's type checker knows
        raw = getattr(function, "__annotations__", {})
        return {k: v for k, v in raw.items() if not isinstance(v, str)}


def accepted_keywords(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of `given` a callback can take: all with ``**kwargs``, else what it names."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(given)
    names = {
        p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    return {k: v for k, v in given.items() if k in names}


def matches(annotation: Any, value: Any) -> bool:
    """Tell whether `value` may be given where `annotation` stands.

    An `int` passes for a `float`; a `bool` passes for neither. Annotations of arrays and
    other classes that a pipeline file cannot spell accept anything.
    """
    if annotation is Any or annotation is inspect.Parameter.empty:
        return True
    if annotation is None or annotation is type(None):
        return value is None
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(matches(option, value) for option in arguments)
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in arguments)
    if origin is typing.Annotated:
        return matches(arguments[0], value)
    kind = origin or annotation
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float | np.integer | np.floating) and not isinstance(
            value, bool
        )
    if kind is str:
        return isinstance(value, str)
    if isinstance(kind, type) and issubclass(kind, list | tuple | Iterable):
        if kind not in (list, tuple) and origin is None:
            return True  # an array class of some library
        if isinstance(value, str) or not isinstance(value, list | tuple):
            return False
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            return len(value) == len(arguments) and all(map(matches, arguments, value))
        return not arguments or all(matches(arguments[0], item) for item in value)
    return True


def type_name(annotation: Any) -> str:
    """Write an annotation as a user reads it: ``int``, ``float or None``, ``'linear' or 'cubic'``."""
    if annotation is None or annotation is type(None):
        return "None"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(option) for option in arguments)
    if origin is Literal:
        return " or ".join(repr(option) for option in arguments)
    if origin in (list, tuple) and arguments:
        inner = ", ".join("..." if a is Ellipsis else type_name(a) for a in arguments)
        return f"{origin.__name__} of {inner}"
    return getattr(annotation, "__name__", str(annotation))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean a or b?"`` for the names nearest to `name`, or nothing."""
    by_lower = {n.lower(): n for n in names}
    close = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(by_lower[c] for c in close)}?" if close else ""


def check_parameters(
    function: Callable[..., Any], given: Mapping[str, Any], supplied: Iterable[str] = SUPPLIED
) -> list[tuple[str | None, str]]:
    """Hold parameters against a method's signature.

    Parameters
    ----------
    function : callable
        The method.
    given : mapping
        What the user gives.
    supplied : iterable of str
        Names that the runner fills in, so that they are never missing.

    Returns
    -------
    list of (str or None, str)
        For each fault the parameter's name (None for one that is missing) and what is
        wrong with it; empty if all is well.
    """
    parameters, hints = keyword_parameters(function), annotations_of(function)
    faults: list[tuple[str | None, str]] = []
    takes_any = any(
        p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()
    )
    for name, value in given.items():
        if name not in parameters:
            if not takes_any:
                known = ", ".join(parameters) or "none"
                hint = nearest(str(name), parameters) or f"; it has: {known}"
                faults.append((name, f"has no parameter {name!r}{hint}"))
        elif not matches(hints.get(name, Any), value):
            faults.append(
                (
                    name,
                    f"parameter {name!r} must be {type_name(hints[name])}, not {value!r} "
                    f"({type(value).__name__})",
                )
            )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given and name not in supplied:
            faults.append((None, f"needs the parameter {name!r}"))
    return faults
