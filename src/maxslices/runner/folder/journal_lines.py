"""The form of a journal: lines of JSON with checksums that cover all lines before, and values.

Side results are not pickled: to read a pickle is to run what it says.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_KIND = "kind"
_SEALED = re.compile(rb'(\{.*),"crc":([0-9]{1,10})\}', re.DOTALL)


def seal(entry: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    """Write an entry as a line.

    Parameters
    ----------
    entry : mapping
        Plain values, at least one.
    before : int
        Checksum of the line before; 0 for the first.

    Returns
    -------
    bytes
        The line.
    int
        Its checksum.
    """
    body = json.dumps(entry, separators=(",", ":")).encode()[:-1]
    checksum = zlib.crc32(body, before)
    return b'%s,"crc":%d}\n' % (body, checksum), checksum


def unseal(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Read lines up to one that is damaged, or that has lost the line before.

    Returns
    -------
    list of dict
        Their entries.
    int
        Checksum of the last of them.
    """
    entries: list[dict[str, Any]] = []
    checksum = 0
    for line in lines:
        found = _SEALED.fullmatch(line)
        if found is None or zlib.crc32(found[1], checksum) != int(found[2]):
            break
        checksum = int(found[2])
        entries.append(json.loads(found[1] + b"}"))
    return entries, checksum


def encode(value: Any) -> Any:
    """Turn a value into one of JSON, from which `decode` makes an equal one of the same type.

    Raises
    ------
    TypeError
        If it is not a number, a text, None, a NumPy array or scalar, or a list, tuple or dict of
        such.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        items = [encode(item) for item in value]
        return items if isinstance(value, list) else {_KIND: "tuple", "items": items}
    if type(value) is dict:
        pairs = [[encode(key), encode(item)] for key, item in value.items()]
        return {_KIND: "dict", "items": pairs}
    is_array = type(value) is np.ndarray
    if (is_array or isinstance(value, np.generic)) and value.dtype.kind in "biufcSU":
        text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        entry = {_KIND: "array" if is_array else "scalar", "dtype": value.dtype.str}
        return {**entry, "shape": list(value.shape), "bytes": text}
    raise TypeError(f"{type(value).__name__} cannot be written down")


def decode(value: Any) -> Any:
    """Make the value that `encode` turned into one of JSON.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it did not.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value[_KIND]
    if kind == "tuple":
        return tuple(decode(item) for item in value["items"])
    if kind == "dict":
        return {decode(key): decode(item) for key, item in value["items"]}
    data = base64.b64decode(value["bytes"], validate=True)
    # Not `frombuffer`, which refuses texts without a character.
    array = np.ndarray(value["shape"], np.dtype(value["dtype"]), data).copy()
    return array if kind == "array" else array[()]
