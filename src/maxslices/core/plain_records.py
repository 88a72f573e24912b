"""Dataclasses as plain values of JSON and back: the annotations of their fields are the format.

A plan, a record of what was measured and the formulas in it are written and read by the same
functions, which check each field against its declared type.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from ..errors import UsageError
from .arrays import ArraySpec

Record = TypeVar("Record")
_LARGEST = 2**63 - 1
"""Largest number: of bytes in a file, and of elements of an array."""
_LINE = 400
"""Characters of a line of JSON: a measured call, or an allocation with its formula."""


class PlainRecord:
    """Base of dataclasses that are kept in files.

    What is read is as in a call of the class: fields with a default may be missing, and there may
    be no others.
    """

    __slots__ = ()
    as_list: ClassVar[bool] = False
    """Whether it is written as the list of its values, without names."""

    def as_plain(self) -> Any:
        """Plain values for JSON."""
        values = _fields(self)
        return list(values.values()) if self.as_list else values

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Read what `as_plain` wrote.

        Raises
        ------
        UsageError, ValueError, KeyError, TypeError
            If the values are not of the declared types, or make no sense.
        """
        hints, name = _hints(cls), cls.__name__  # type: ignore[arg-type]
        if cls.as_list:
            plain = dict(zip(hints, plain, strict=True))
        if not isinstance(plain, dict) or plain.keys() - hints.keys():
            raise _wrong(name, f"an object with {', '.join(hints)}", plain)
        found = cls(**{k: _decoded(hints[k], v, f"{name}.{k}") for k, v in plain.items()})
        found.check()
        return found

    def check(self) -> None:
        """Raise an exception if what was read makes no sense."""


def to_plain(value: Any) -> Any:
    """Turn a dataclass, and those in it, into dicts, lists and plain values."""
    if isinstance(value, PlainRecord):
        return value.as_plain()
    if isinstance(value, ArraySpec):
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {_as_key(key): to_plain(item) for key, item in value.items()}
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
    found = {}
    for name, hint in _hints(kind).items():  # type: ignore[arg-type]
        if name not in value:
            raise UsageError(f"{where}.{name} is missing")
        place, given = f"{where}.{name}", value[name]
        found[name] = _decoded(hint, given, place)
        is_negative = isinstance(given, int) and given < 0
        if name.endswith("_bytes") and is_negative:
            raise _wrong(place, "at least 0", given)
    return kind(**found)


def json_text(value: Any, indent: int = 0) -> str:
    """Readable JSON: what fits in a line is in one, of anything else each part has its own."""
    line = json.dumps(value)
    if len(line) <= _LINE or not isinstance(value, dict | list):
        return line
    names = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else repeat("")
    items = value.values() if isinstance(value, dict) else value
    parts = [name + json_text(item, indent + 1) for name, item in zip(names, items, strict=False)]
    inner = "\n" + " " * (indent + 1)
    return f"{line[0]}{inner}{f',{inner}'.join(parts)}{inner[:-1]}{line[-1]}"


@lru_cache(maxsize=256)
def _hints(kind: Any) -> dict[str, Any]:
    """Types of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@lru_cache(maxsize=1024)
def _origin(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}


def _as_key(key: Any) -> str:
    """Key of an object as text: dims are such as 1801x2560."""
    return "x".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _decoded(hint: Any, value: Any, where: str) -> Any:
    if hint is Any or (hint is not int and type(value) is hint):
        return value
    origin, parts = _origin(hint)
    if origin in (Literal, Union, types.UnionType):
        return _decoded_choice(hint, value, where)
    if origin is tuple:
        return _decoded_tuple(parts, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        return {
            _decoded_key(parts[0], key, where): _decoded(parts[1], item, f"{where}.{key}")
            for key, item in value.items()
        }
    if hint is ArraySpec:
        return _decoded_array(value, where)
    if isinstance(hint, type) and issubclass(hint, PlainRecord):
        return hint.from_plain(value)
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


def _decoded_choice(hint: Any, value: Any, where: str) -> Any:
    """One of some values, or of some types: the first that reads it."""
    kinds = [part for part in get_args(hint) if part is not type(None)]
    if value is None and len(kinds) < len(get_args(hint)):
        return None
    choices = _choices(hint)
    if not any(isinstance(each, type) or get_origin(each) for each in choices):
        if value not in choices:
            raise _wrong(where, f"one of {', '.join(map(repr, choices))}", value)
        return value
    for kind in kinds[:-1]:
        with suppress(UsageError, ValueError, TypeError, KeyError):
            return _decoded(kind, value, where)
    return _decoded(kinds[-1], value, where)


def _decoded_key(hint: Any, key: Any, where: str) -> Any:
    if get_origin(hint) is tuple:
        return _decoded(hint, [int(part) for part in key.split("x")], where)
    return hint(key) if hint is int else key


def _decoded_tuple(parts: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
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
