"""Values as short texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from ..core.units import readable

LONGEST = 160
"""Characters of a value; two lines on a page, four on a phone."""
FIRST = 4
"""Values of a list that are written out."""
_PART = re.compile(r"(?<=[._/:])(?=\w)")
"""Where a name of a method, or a path, may be broken."""


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


def breakable(text: str) -> Markup:
    """Let a name be broken behind its parts, and not anywhere, where the page is narrow.

    Examples
    --------
    >>> breakable("find_center.cor")
    Markup('find_<wbr>center.<wbr>cor')
    """
    return Markup("<wbr>").join(_PART.split(text))


def printable(value: Any) -> Any:
    """Escape the control characters of a text; other values are returned unchanged."""
    return type(value)(readable(value)) if isinstance(value, str) else value
