"""The file format of records: readable JSON, checked when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .probe_result import LATEST_S

FORMAT = 5
"""Version of the files, raised whenever their layout or meaning changes; entries of another version
are ignored, and dropped when the method is measured again."""

Entry = dict[str, Any]
PARSE_ERRORS = (
    *(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError),
    UsageError,
)
"""Exceptions that reading a file that is not one of records may raise."""


def read_entries(path: Path) -> list[Entry]:
    """Read a method's file; no entries if it is missing or of another version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return []
    return [] if _is_of_another_version(content) else checked_entries(content)


def not_understood(path: Path, error: Exception) -> str:
    """Message for a file that is not one of records."""
    return f"{path} cannot be understood ({type(error).__name__}: {error})"


def _is_of_another_version(content: Any) -> bool:
    found = content["format"]
    return type(found) is int and found > 0 and found != FORMAT


def checked_entries(content: Any) -> list[Entry]:
    """Check the content of a file of records, and give its entries.

    Raises
    ------
    ValueError, KeyError, TypeError
        If the content is not one of records.
    """
    if _is_of_another_version(content):
        raise ValueError(
            f"it is of version {content['format']}, from another version of maxslices; here is "
            f"{FORMAT}"
        )
    if content["format"] != FORMAT:
        raise ValueError(f"version {content['format']!r}")
    for entry in content["entries"]:
        question, at = entry["question"], entry["place"]
        if not _is_name(question["method"]):
            raise ValueError(f"{question['method']!r} is not the name of a method")
        if not isinstance(at["device"], str) or not isinstance(at["libraries"], dict):
            raise ValueError("a place is not a device with libraries")
        if not isinstance(question["source"], str) or not isinstance(question["package"], str):
            raise ValueError("a question without source")
        if not isinstance(question["parameters"], dict) or not isinstance(question["dtype"], str):
            raise ValueError("a question without parameters or dtype")
        if question["slice_dim"] not in (0, 1) or len(question["other_dims"]) != 2:
            raise ValueError("a question without slices")
        if not 0 <= float(entry["time_s"]) < LATEST_S:
            raise ValueError(f"{entry['time_s']} is no time")
        if not isinstance(entry["probe"], dict):
            raise TypeError("an answer is not an object")
    entries: list[Entry] = list(content["entries"])
    return entries


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))
