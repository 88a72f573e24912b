"""Parts of a scan in the notation of users: ``mid``, ``40:44``, ``::2``, ``mid-5:mid+5``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import UsageError
from .loader import AxisIndex, Bound, Part, Preview

PartLike = str | int | slice | range | Sequence[int | None]
"""Part of an axis: text as on the command line, an index, a slice or range, (start, stop) or
(start, stop, step)."""
OPTIONS = {"angles": "angles", "rows": "detector_y", "columns": "detector_x"}
"""Option of users -> name of the axis in a preview."""
_BOUND = re.compile(r"(begin|mid|end)([+-][0-9]+)?|(-?[0-9]+)")


def with_choice(preview: Preview, chosen: Mapping[str, PartLike | None]) -> Preview:
    """Return a preview with other parts of some axes.

    Parameters
    ----------
    preview : Preview
        The preview of a pipeline file.
    chosen : mapping of str to PartLike
        "angles", "rows" and "columns" -> the part; None keeps that of `preview`.

    Raises
    ------
    UsageError
        If a part cannot be understood.

    Examples
    --------
    >>> with_choice(Preview(), {"rows": "mid", "angles": "::2"})
    Preview(angles=(None, None), detector_y='mid', detector_x=(None, None), angle_step=2)
    """
    for name, value in chosen.items():
        if value is None:
            continue
        part, step = _parse(name, value)
        if name == "angles":
            if part == "mid":
                raise UsageError(f"angles {_shown(value)}: mid is for rows or columns only")
            preview = replace(preview, angles=part, angle_step=step)
        elif step != 1:
            raise UsageError(
                f"{name} {_shown(value)}: {name} cannot have a step, because methods need "
                "neighbours. Use START:STOP"
            )
        else:
            preview = (
                replace(preview, detector_y=part)
                if name == "rows"
                else replace(preview, detector_x=part)
            )
    return preview


def preview_words(preview: Preview) -> dict[str, Any]:
    """Preview in the form of a pipeline file, without axes that are read whole.

    Examples
    --------
    >>> preview_words(with_choice(Preview(), {"rows": "mid-2:", "columns": "mid"}))
    {'detector_y': {'start': 'mid', 'start_offset': -2}, 'detector_x': 'mid'}
    """
    words: dict[str, Any] = {}
    for axis in OPTIONS.values():
        part: Part = getattr(preview, axis)
        if part == "mid":
            words[axis] = "mid"
            continue
        part_words: dict[str, Any] = {}
        for name, bound in zip(("start", "stop"), part, strict=True):
            if isinstance(bound, AxisIndex):
                part_words[name] = bound.keyword
                if bound.offset:
                    part_words[f"{name}_offset"] = bound.offset
            elif bound is not None:
                part_words[name] = bound
        if axis == "angles" and preview.angle_step != 1:
            part_words["step"] = preview.angle_step
        if part_words:
            words[axis] = part_words
    return words


def _parse(name: str, value: PartLike) -> tuple[Part, int]:
    """Parse a part and its step."""
    values: list[Any]
    if isinstance(value, str):
        words = value.replace(" ", "").split(":")
        if words == ["mid"]:
            return "mid", 1
        values = [_value(name, value, word) for word in words]
    elif isinstance(value, slice | range):
        values = [value.start, value.stop, value.step]
    elif isinstance(value, tuple | list):  # an array may be a list of frames
        values = [*value] if len(value) > 1 else []
    else:
        values = [value]
    numbers = [v for v in values if v is not None and not isinstance(v, AxisIndex)]
    if not 0 < len(values) <= 3 or not all(_is_int(v) for v in numbers):
        raise _not_understood(name, value)
    if len(values) == 1 and numbers:
        first = int(values[0])
        return (_bound(first), None if first == -1 else _bound(first + 1)), 1
    step = values[2] if len(values) == 3 and values[2] is not None else 1
    if len(values) == 1 or not _is_int(step) or step < 1:
        raise _not_understood(name, value)
    return (_bound(values[0]), _bound(values[1])), int(step)


def _value(name: str, text: str, word: str) -> int | AxisIndex | None:
    """Number, or keyword with offset, of a bound in text; None if it is empty."""
    match = _BOUND.fullmatch(word)
    if match is None and word:
        raise _not_understood(name, text)
    if match is None or not match[1]:
        return None if match is None else int(match[3])
    return AxisIndex(match[1], int(match[2] or 0))


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _bound(index: Any) -> Bound:
    """Index from the beginning; a negative index counts from the end, as in NumPy."""
    if index is None or isinstance(index, AxisIndex):
        return index
    return AxisIndex("end", int(index)) if index < 0 else int(index)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _not_understood(name: str, value: object) -> UsageError:
    step = "[:STEP]" if name == "angles" else ""
    mid = "" if name == "angles" else "mid, "
    return UsageError(
        f"{name} {_shown(value)!r} is not a part: give {mid}START:STOP{step} or one index; START "
        "and STOP are indices, or begin, mid or end with an offset, as in mid-5:mid+5"
    )
