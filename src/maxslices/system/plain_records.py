"""Convert records to JSON and back with msgspec, and any value to JSON with `plain`.

A record is a dataclass, written as an object, or a named tuple, written as a list. The annotations
of its fields define the format. Modules with records need no imports for this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import repeat
from typing import Any, TypeVar, get_origin

import numpy as np

from ..core.arrays import as_dtype
from ..errors import UsageError

Record = TypeVar("Record")
_MAX_NUMBER = 2**63 - 1
"""Limit of bytes in a file, and of elements of an array."""
_MAX_LINE = 400
"""Most characters of a line of JSON, enough for a measured call or an allocation."""


def to_plain(value: Any) -> Any:
    """Convert a record, and nested ones, to dicts, lists and plain values."""
    import msgspec  # not needed to declare and check methods

    return _with_lists(msgspec.to_builtins(value, str_keys=True, enc_hook=_encode))


def from_plain(kind: type[Record], value: Any, where: str) -> Record:
    """Restore a record from the output of `to_plain`.

    Missing fields take their defaults, and unknown keys are ignored.

    Parameters
    ----------
    kind : type
        The record's class.
    value : object
        A value read from JSON.
    where : str
        Name of the value in messages.

    Raises
    ------
    UsageError
        If a field is missing or has another type, a number is too large, or a number of bytes is
        negative. The message names the field.
    """
    import msgspec

    try:
        record = msgspec.convert(value, kind, str_keys=True, dec_hook=_decode)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        place = place.rpartition("$")[2].rstrip("`")
        raise UsageError(f"{where}{place}: {message}") from None
    except UnicodeEncodeError as error:  # JSON may hold half of a surrogate pair
        raise UsageError(f"{where}: {error.object!r} is not valid text") from None
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    _check_numbers(value, where)
    return record


def plain(value: Any) -> Any:
    """Convert a value to JSON types. Values that JSON lacks become text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):  # sorted, as the order of strings varies
        return sorted((plain(item) for item in value), key=repr)
    return str(value)


def json_text(value: Any, indent: int = 0) -> str:
    """Format as JSON. A value is in one line if it fits, otherwise each item has a line."""
    line = json.dumps(value)
    if len(line) <= _MAX_LINE or not isinstance(value, dict | list):
        return line
    names = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else repeat("")
    items = value.values() if isinstance(value, dict) else value
    parts = [name + json_text(item, indent + 1) for name, item in zip(names, items, strict=False)]
    inner = "\n" + " " * (indent + 1)
    return f"{line[0]}{inner}{f',{inner}'.join(parts)}{inner[:-1]}{line[-1]}"


def _with_lists(value: Any) -> Any:
    """Replace tuples by lists, as in JSON."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    return value


def _encode(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


def _decode(kind: type, value: Any) -> Any:
    if get_origin(kind) is np.dtype and isinstance(value, str):
        return as_dtype(value)
    raise ValueError("Expected the name of a dtype")


def _check_numbers(value: Any, where: str) -> None:
    """Reject numbers beyond the size of files and arrays, anywhere in the value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        place = f"{where}.{key}" if isinstance(value, dict) else f"{where}[{key}]"
        if isinstance(item, dict | list | tuple):
            _check_numbers(item, place)
        elif isinstance(item, int) and not isinstance(item, bool):
            if abs(item) > _MAX_NUMBER:
                raise UsageError(f"{place} must be at most {_MAX_NUMBER}, not {str(item)[:60]}")
            if str(key).endswith("_bytes") and item < 0:
                raise UsageError(f"{place} must be at least 0, not {item}")
