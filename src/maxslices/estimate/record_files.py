"""The file format of records: readable JSON, checked when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..model.plain_records import json_text
from .probe_result import LATEST_S

FORMAT = 5
"""Version of the files, raised whenever their layout or meaning changes; entries of another version
are ignored, and replaced when the method is measured again."""

Entry = dict[str, Any]
PARSE_ERRORS = (
    *(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError),
    UsageError,
)
"""Exceptions that reading a file that is not one of records may raise."""


class AnotherVersionError(ValueError):
    """A file is from another version of maxslices."""


def read_entries(path: Path) -> list[Entry]:
    """Read a file of records, and check all that is in it but the probes.

    Raises
    ------
    OSError, AnotherVersionError
        If it cannot be read, or is of another version.
    ValueError, KeyError, TypeError, UsageError
        If it is not one of records: see `PARSE_ERRORS`.
    """
    return checked_entries(json.loads(path.read_text(encoding="utf-8")))


def file_text(entries: list[Entry]) -> str:
    """Text of a file of records."""
    return json_text({"format": FORMAT, "entries": entries})


def not_understood(path: Path, error: Exception) -> str:
    """Message for a file that is not one of records."""
    return f"{path} cannot be understood ({type(error).__name__}: {error})"


def checked_entries(content: Any) -> list[Entry]:
    """Check the content of a file of records, as `read_entries` does, and give its entries."""
    found = content["format"]
    if type(found) is not int or found < 1:
        raise ValueError(f"version {found!r}")
    if found != FORMAT:
        raise AnotherVersionError(
            f"it is of version {found}, from another version of maxslices; here is {FORMAT}"
        )
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
