"""Values as short texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unicodedata import category

LONGEST = 160
"""Characters of a value; two lines on a page, four on a phone."""
FIRST = 4
"""Values of a list that are written out."""


def short(value: Any) -> str:
    """Write a value of JSON as a short text.

    Examples
    --------
    >>> short(128.24461)
    '128.245'
    >>> short([0.5, 1, 1.5, 2, 2.5, 3])
    '6 values: 0.5, 1, 1.5, 2, ...'
    >>> short({"size": 7, "mode": None})
    'size: 7, mode: none'
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {short(item)}" for key, item in value.items())
    elif isinstance(value, list | tuple):
        text = ", ".join(short(item) for item in value[:FIRST])
        if len(value) > FIRST:
            text = f"{len(value)} values: {text}, ..."
        elif any(isinstance(item, list | tuple) for item in value):
            text = f"[{text}]"
    else:
        text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def printable(value: Any) -> Any:
    """Replace what is no character for people, in a text; other values stay as they are.

    That are control characters, marks that change the direction of writing, and the single
    surrogates as which Python reads names of files that are not text.
    """
    if not isinstance(value, str) or value.isprintable():
        return value
    characters = (c if c in "\n\t" or category(c)[0] != "C" else "\ufffd" for c in value)
    return type(value)("".join(characters))
