"""The file format of records: readable JSON, checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..model.plain_records import PlainRecord, json_text, to_plain
from .fingerprint import Environment, RequestKey
from .probe_result import LATEST_S, Probe

FORMAT = 7
"""Version of the files, raised whenever their layout or meaning changes; entries of another version
are ignored, and replaced when the method is measured again."""
PARSE_ERRORS = (
    *(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError),
    UsageError,
)
"""Exceptions that reading a file that is not one of records may raise."""


class AnotherVersionError(ValueError):
    """A file is from another version of maxslices."""


@dataclass(frozen=True, slots=True)
class Entry(PlainRecord):
    """A probe, with what it answers."""

    question: RequestKey
    place: Environment
    time_s: float
    """When it was measured, in seconds since 1970."""
    probe: Probe

    def check(self) -> None:
        """Raise an exception if the method's name is none, or it was measured at no time."""
        if not all(part.isidentifier() for part in self.question.method.split(".")):
            raise ValueError(f"{self.question.method!r} is not the name of a method")
        if not 0 <= self.time_s < LATEST_S:
            raise ValueError(f"{self.time_s} is no time")


def read_entries(path: Path) -> list[Entry]:
    """Read a file of records.

    Raises
    ------
    OSError, AnotherVersionError
        If it cannot be read, or is of another version.
    ValueError, KeyError, TypeError, UsageError
        If it is not one of records: see `PARSE_ERRORS`.
    """
    return entries_of(json.loads(path.read_text(encoding="utf-8")))


def entries_of(content: Any) -> list[Entry]:
    """Entries in the content of a file of records; it raises what `read_entries` does."""
    found = content["format"]
    if type(found) is not int or found < 1:
        raise ValueError(f"version {found!r}")
    if found != FORMAT:
        raise AnotherVersionError(
            f"it is of version {found}, from another version of maxslices; here is {FORMAT}"
        )
    return [Entry.from_plain(each) for each in content["entries"]]


def file_text(entries: Sequence[Entry]) -> str:
    """Text of a file of records."""
    return json_text({"format": FORMAT, "entries": to_plain(list(entries))})


def not_understood(path: Path, error: Exception) -> str:
    """Message for a file that is not one of records."""
    return f"{path} cannot be understood ({type(error).__name__}: {error})"
