"""Dataclasses as plain values of JSON and back, each field checked against its declared type."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import UsageError
from ..model.arrays import ArraySpec

Record = TypeVar("Record")
_LARGEST = 2**63 - 1
"""Largest number: of bytes in a file, and of elements of an array."""


def to_plain(value: Any) -> Any:
    """Turn a dataclass, and those in it, into dicts, lists and plain values."""
    if isinstance(value, ArraySpec):
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[Record], value: Any, where: str) -> Record:
    """Make a dataclass of what `to_plain` made of it; unknown keys are ignored.

    Parameters
    ----------
    kind : type
        The dataclass.
    value : object
        A value read from JSON.
    where : str
        Name of the value in messages.

    Raises
    ------
    UsageError
        Naming the field that is missing or not of its type, or a negative number of bytes.
    """
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    hints = get_type_hints(kind)
    found = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in value:
            raise UsageError(f"{where}.{field.name} is missing")
        place, given = f"{where}.{field.name}", value[field.name]
        found[field.name] = _decoded(hints[field.name], given, place)
        is_negative = isinstance(given, int) and given < 0
        if field.name.endswith("_bytes") and is_negative:
            raise _wrong(place, "at least 0", given)
    return kind(**found)


def _decoded(hint: Any, value: Any, where: str) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType) and type(None) in parts:
        kind = next(part for part in parts if part is not type(None))
        return None if value is None else _decoded(kind, value, where)
    if origin in (Literal, Union, types.UnionType):
        choices = _choices(hint)
        if value not in choices:
            raise _wrong(where, f"one of {', '.join(map(repr, choices))}", value)
        return value
    if origin is tuple:
        return _decoded_tuple(parts, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        return {key: _decoded(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is ArraySpec:
        return _decoded_array(value, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_plain(hint, value, where)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number and not -_LARGEST <= value <= _LARGEST:
        raise _wrong(where, f"at most {_LARGEST}", value)
    if hint is float and (is_number or isinstance(value, float)):
        return float(value)
    if type(value) is not hint:
        raise _wrong(where, f"of type {hint.__name__}", value)
    return value


def _decoded_tuple(parts: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(where, "a list", value)
    if len(parts) == 2 and parts[1] is Ellipsis:
        parts = (parts[0],) * len(value)
    if len(parts) != len(value):
        raise _wrong(where, f"a list of {len(parts)}", value)
    pairs = enumerate(zip(parts, value, strict=True))
    return tuple(_decoded(part, item, f"{where}[{i}]") for i, (part, item) in pairs)


def _decoded_array(value: Any, where: str) -> ArraySpec:
    try:
        shape, dtype = value["shape"], value["dtype"]
        if isinstance(shape, list) and isinstance(dtype, str):
            return ArraySpec(tuple(shape), np.dtype(dtype))
    except (TypeError, KeyError, ValueError, SyntaxError, UsageError):
        pass  # NumPy raises any of these for what is not a dtype
    raise _wrong(where, "an array's shape and dtype", value)


def _choices(hint: Any) -> list[Any]:
    """All values of a `Literal`, or of a union of them."""
    parts = get_args(hint)
    return [value for part in parts for value in (_choices(part) or [part])]


def _wrong(where: str, wanted: str, value: Any) -> UsageError:
    shown = repr(value)
    return UsageError(f"{where} must be {wanted}, not {shown[:60]}{'...' * (len(shown) > 60)}")
