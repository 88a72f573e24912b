"""Probes kept on disk: one JSON file for each, so that writers need no lock.

An `Entry` answers where the key of the request and the place are equal. For a device that is not
present, the newest entry from a device of its kind answers, whatever its libraries were.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import StoreError, UsageError
from ..system.cache_dir import FOLDER_VARIABLE, records_folder
from ..system.disk_space import store_errors
from ..system.files import replace_text
from ..system.plain_records import from_plain, json_text, to_plain
from .probe_result import Probe
from .request_key import Environment, RequestKey, canonical

FORMAT = 9
"""Version of the files, raised whenever their layout or meaning changes; entries of another version
are ignored, and replaced when the method is measured again."""
PARSE_ERRORS = (
    *(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError),
    UsageError,
)
"""Exceptions that reading a file that is not one of records may raise."""
_LATEST_S = 2**36
"""Times from here on (year 4147, in seconds since 1970) are taken for damage, as are durations."""
_DIGITS = 12
"""Of each of two hashes in a file's name, in hexadecimal: 48 bits, which no two of some thousand
share."""
_NAME = re.compile(rf"(.+)\.[0-9a-f]{{{_DIGITS}}}_[0-9a-f]{{{_DIGITS}}}\.json")


class AnotherVersionError(ValueError):
    """A file is from another version of maxslices."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A probe, with what it answers."""

    question: RequestKey
    place: Environment
    time_s: float
    """When it was measured, in seconds since 1970."""
    probe: Probe

    def check(self) -> None:
        """Raise an exception if the record is damaged: its types are right, its values are not."""
        if not all(part.isidentifier() for part in self.question.method.split(".")):
            raise ValueError(f"{self.question.method!r} is not the name of a method")
        if not 0 <= self.time_s < _LATEST_S:
            raise ValueError(f"{self.time_s} is not a time")
        for rung in self.probe.rungs:
            times = rung.duration_s, rung.call_s
            if rung.n_slices < 1 or rung.n_bytes < 0 or not all(0 <= s < _LATEST_S for s in times):
                raise ValueError(f"{rung} is not a call")
        if not self.probe.peaks.moments or self.probe.peaks.granule_bytes < 1:
            raise ValueError("a peak without moments")
        model = self.probe.model()
        model.bytes(1), model.kept_bytes(1)  # raise if a formula has an unknown count


def read_entries(text: str) -> list[Entry]:
    """Read the text of a file of records.

    Raises
    ------
    AnotherVersionError
        If it is of another version.
    ValueError, KeyError, TypeError, UsageError
        If it is not one of records: see `PARSE_ERRORS`.
    """
    content = json.loads(text)
    found = content["format"]
    if type(found) is not int or found < 1:
        raise ValueError(f"version {found!r}")
    if found != FORMAT:
        raise AnotherVersionError(
            f"it is of version {found}, from another version of maxslices; here is {FORMAT}"
        )
    entries = from_plain(list[Entry], content["entries"], "entries")
    for entry in entries:
        entry.check()
    return entries


def file_text(entries: Sequence[Entry]) -> str:
    """Text of a file of records."""
    return json_text({"format": FORMAT, "entries": to_plain(list(entries))})


def not_understood(path: Path, error: Exception) -> str:
    """Message for a file that is not one of records."""
    return f"{path} cannot be understood ({type(error).__name__}: {error})"


class Records:
    """Probes on disk, found by the key of a request.

    A file that cannot be understood is left out, with a warning; if it is that of the request, the
    method is measured again and the file replaced. A folder that cannot be written to causes a
    warning only when a probe is kept; else files that cannot be read, written or deleted raise a
    `StoreError`. By default the folder is `records_folder`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = records_folder() if folder is None else Path(folder)

    def find(self, key: RequestKey, place: Environment) -> Entry | None:
        """Entry of a request, from this device with these versions; None if there is none."""
        found = self._read(self._path(key, place))
        return found[0] if found else None

    def newest(self, key: RequestKey, suits: Callable[[Environment], bool]) -> Entry | None:
        """Newest entry of a request from a place that suits; None if there is none."""
        found = self._listed(f"{_start(key)}*.json")
        return next((entry for entry in reversed(found) if suits(entry.place)), None)

    def of_other_card(self, key: RequestKey, here: Environment) -> Entry | None:
        """Newest entry from any GPU that holds for this one; None if there is none.

        What a method asks CuPy's pool for is the same on every card, if its libraries are: the
        driver and the card's name may differ.
        """
        libraries = here.libraries | {"cuda driver": ""}

        def suits(place: Environment) -> bool:
            return place.device != "cpu" and place.libraries | {"cuda driver": ""} == libraries

        found = self.newest(key, suits)
        return found if found is not None and found.probe.is_of_any_card else None

    def entries(self, method: str | None = None) -> list[Entry]:
        """List all entries, or a method's (by full or plain name); oldest first."""
        found = self._listed("*.json" if method is None else f"*{method}.*.json")
        return [e for e in found if method in (None, e.question.method, e.question.name)]

    def add(self, key: RequestKey, place: Environment, probe: Probe) -> None:
        """Keep a probe, replacing an earlier one with the same key and place.

        Entries measured on this device with another source of the method are dropped: no lookup
        can match them any more.
        """
        code = key.source, key.package
        try:
            self._write(Entry(key, place, round(time.time(), 6), probe))
            for each in self.entries(key.method):
                asked = each.question
                if each.place.device == place.device and (asked.source, asked.package) != code:
                    self._remove(self._path(asked, each.place))
        except StoreError as error:
            said = f"measurements cannot be kept there: {error} with {FOLDER_VARIABLE}"
            warnings.warn(said, stacklevel=2)

    def export(self, path: str | os.PathLike[str], method: str | None = None) -> int:
        """Write all entries, or a method's, to one file; returns their number."""
        found = self.entries(method)
        if Path(path).is_dir():
            raise StoreError(f"{path} is a folder: name a file for the records")
        text = file_text(found)
        with store_errors(Path(path), len(text)):
            replace_text(Path(path), text)
        return len(found)

    def import_file(self, path: str | os.PathLike[str]) -> int:
        """Add the entries of an exported file; returns their number.

        Of two entries with the same key and place the newer one is kept.

        Raises
        ------
        UsageError
            If the file is not an export of records.
        """
        try:
            entries = read_entries(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path}: records cannot be read: {error.strerror}") from None
        except PARSE_ERRORS as error:
            raise UsageError(
                f"{path} is not a file of records ({error}): maxslices records export makes one"
            ) from None
        for entry in entries:
            known = self.find(entry.question, entry.place)
            if known is None or known.time_s <= entry.time_s:
                self._write(entry)
        return len(entries)

    def clear(self, method: str | None = None) -> int:
        """Delete all records, or a method's, also damaged ones; returns their number."""
        count = 0
        for name in self._names("*.json"):
            told = _NAME.fullmatch(name)
            if told and method in (None, told[1], told[1].rpartition(".")[2]):
                self._remove(self.folder / name)
                count += 1
        return count

    def _path(self, key: RequestKey, place: Environment) -> Path:
        return self.folder / f"{_start(key)}{_digest(place)}.json"

    def _write(self, entry: Entry) -> None:
        text = file_text([entry])
        with store_errors(self.folder, len(text)):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_text(self._path(entry.question, entry.place), text)

    def _remove(self, path: Path) -> None:
        with store_errors(self.folder, 0):
            path.unlink(missing_ok=True)

    def _names(self, pattern: str) -> list[str]:
        """Sorted names of files."""
        try:
            return sorted(fnmatch.filter(os.listdir(self.folder), pattern))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(
                f"{self.folder}: records cannot be read: {error.strerror}; set {FOLDER_VARIABLE} "
                "to a folder that can be read"
            ) from None

    def _listed(self, pattern: str) -> list[Entry]:
        """Entries of the files with such names; oldest first."""
        found = [entry for name in self._names(pattern) for entry in self._read(self.folder / name)]
        return sorted(found, key=lambda entry: entry.time_s)

    def _read(self, path: Path) -> list[Entry]:
        """Entry of a file; none if it is missing, of another version or cannot be understood."""
        try:
            return read_entries(path.read_text(encoding="utf-8"))
        except (OSError, AnotherVersionError):
            return []
        except PARSE_ERRORS as error:
            warnings.warn(f"{not_understood(path, error)}: left out", stacklevel=4)
            return []


def _start(key: RequestKey) -> str:
    """Start of the names of a request's files."""
    return f"{key.method}.{_digest(key)}_"


def _digest(value: RequestKey | Environment) -> str:
    return hashlib.sha256(canonical(to_plain(value)).encode()).hexdigest()[:_DIGITS]
