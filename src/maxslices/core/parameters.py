"""Check the parameters of methods against signatures and annotations."""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union

import numpy as np

SUPPLIED = (
    "flats",
    "darks",
    "flat_weights",
    "angles",
    "scan_angles",
    "slice_dim",
    "first_slice",
    "detector_start",
    "results_folder",
    "pixel_size_um",
)
"""Parameters that the runner supplies, if the method has them:

* ``flats`` and ``darks``: stacks of frames
* ``flat_weights``: weights of the flats for each projection, or None to use their mean
* ``angles`` and ``scan_angles``: projection angles of the block and of the scan, in radians
* ``slice_dim``: axis along which the block is cut
* ``first_slice``: index of the block's first slice in the whole array
* ``detector_start``: (row, column) of the detector at which the loader's preview starts
* ``results_folder``: folder of the results, or None if they are kept in memory
* ``pixel_size_um``: pixel size at the sample in micrometres, or None if unknown
"""

_LISTS: tuple[Any, ...] = (
    list,
    tuple,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.abc.Set,
)
_MAPPINGS: tuple[Any, ...] = (
    dict,
    collections.abc.Mapping,
    collections.abc.MutableMapping,
)


def keyword_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Parameters of a method after its data, by name."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolve a function's annotations, without those that cannot be resolved."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__annotations__") or inspect.isclass(function):
        function = type(function).__call__
    function = inspect.unwrap(function)
    names = getattr(function, "__globals__", {})
    resolved: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        # Names that only type checkers import (TYPE_CHECKING) cannot be resolved.
        with contextlib.suppress(AttributeError, NameError, SyntaxError, TypeError):
            resolved |= typing.get_type_hints(alone, globalns=names)
    return resolved


def matches(annotation: Any, value: Any) -> bool:
    """True if `value` is valid for `annotation`.

    An `int` is a valid `float`, but a `bool` is not a valid `int`. Lists, tuples and sets are
    interchangeable, because YAML has lists only. Annotations of arrays and other classes that YAML
    cannot express accept any value.
    """
    if annotation is Any or annotation is inspect.Parameter.empty:
        return True
    if annotation is None or annotation is type(None):
        return value is None
    if isinstance(annotation, typing.NewType):
        return matches(annotation.__supertype__, value)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(matches(option, value) for option in arguments)
    if origin is Literal:
        plain = value.item() if isinstance(value, np.generic) else value
        return any(type(plain) is type(option) and plain == option for option in arguments)
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
    if kind is complex:
        return isinstance(value, complex | np.complexfloating) or matches(float, value)
    if kind is str:
        return isinstance(value, str)
    if kind in _LISTS:
        return _matches_list(kind, arguments, value)
    if kind in _MAPPINGS:
        if not isinstance(value, collections.abc.Mapping):
            return False
        of_key, of_value = arguments or (Any, Any)
        return all(matches(of_key, k) and matches(of_value, v) for k, v in value.items())
    return True


def _matches_list(kind: Any, arguments: tuple[Any, ...], value: Any) -> bool:
    if isinstance(value, np.ndarray) and kind not in (list, tuple):
        return True
    if not isinstance(value, list | tuple | set | frozenset | range):
        return False
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        return len(value) == len(arguments) and all(map(matches, arguments, value))
    return not arguments or all(matches(arguments[0], item) for item in value)


def type_name(annotation: Any) -> str:
    """Write an annotation for users: ``float or None``, ``'linear' or 'cubic'``."""
    if annotation is None or annotation is type(None):
        return "None"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(option) for option in arguments)
    if origin is Literal:
        return " or ".join(repr(option) for option in arguments)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    name = getattr(origin or annotation, "__name__", str(annotation))
    if origin in _LISTS and arguments:
        inner = ", ".join("..." if a is Ellipsis else type_name(a) for a in arguments)
        return f"{name} of {inner}"
    if origin in _MAPPINGS and arguments:
        return f"{name} of {type_name(arguments[0])} to {type_name(arguments[1])}"
    return str(name)


def nearest(name: str, names: Iterable[str]) -> str:
    """Suggest similar names, as ``"; did you mean a or b?"``, or return an empty string."""
    from difflib import get_close_matches  # takes 5 ms, so it is imported after a mistake only

    by_lower = {n.lower(): n for n in sorted(names)}
    close = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(by_lower[c] for c in close)}?" if close else ""


def check_parameters(
    function: Callable[..., Any], values: Mapping[str, Any], supplied: Iterable[str] = SUPPLIED
) -> list[tuple[str | None, str]]:
    """Check parameters against a method's signature.

    Parameters
    ----------
    function : callable
        The method.
    values : mapping
        The user's parameters.
    supplied : iterable of str
        Names that the runner supplies, which are never missing.

    Returns
    -------
    list of (str or None, str)
        For each fault the parameter's name (None for a missing one) and a description.
    """
    parameters, hints = keyword_parameters(function), annotations_of(function)
    faults: list[tuple[str | None, str]] = []
    signature = list(inspect.signature(function).parameters.values())
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature)
    for name, value in values.items():
        if name not in parameters:
            if not takes_any or name == signature[0].name:
                valid = ", ".join(p for p in parameters if p not in supplied) or "none"
                hint = nearest(str(name), parameters) or f"; it has: {valid}"
                faults.append((name, f"has no parameter {name!r}{hint}"))
            continue
        if value is None and parameters[name].default is None:
            continue  # many authors write `size: int = None`
        annotation = hints.get(name, Any)
        if not matches(annotation, value):
            faults.append(
                (
                    name,
                    f"parameter {name!r} must be {type_name(annotation)}, not {value!r} "
                    f"({type(value).__name__})",
                )
            )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in {*values, *supplied}:
            faults.append((None, f"needs the parameter {name!r}"))
    return faults
