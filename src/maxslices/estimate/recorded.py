"""Probes stored on disk, one JSON file each, which are written without a lock.

An `Entry` answers a request with an equal key on the same device with the same libraries. For a
device that is not present, the newest entry from a device of its kind answers, with any libraries.
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
"""Version of the files, which increases if their layout or meaning changes. Entries of another
version are ignored, and replaced when the method is measured again."""
PARSE_ERRORS = (
    *(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError),
    UsageError,
)
"""Exceptions that reading an arbitrary file may raise."""
_LATEST_S = 2**36
"""Upper bound of times in seconds since 1970 (the year 4147) and of durations. Larger values are
damaged."""
_DIGITS = 12
"""Hexadecimal digits of each of the two hashes in the name of a file: 48 bits, enough for distinct
names of several thousand records."""
_NAME = re.compile(rf"(.+)\.[0-9a-f]{{{_DIGITS}}}_[0-9a-f]{{{_DIGITS}}}\.json")


class AnotherVersionError(ValueError):
    """A file is from another version of maxslices."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Probe with its request."""

    question: RequestKey
    """The request."""
    place: Environment
    """Device and libraries of the measurement."""
    time_s: float
    """When it was measured, in seconds since 1970."""
    probe: Probe
    """The measurement."""

    def check(self) -> None:
        """Raise a `ValueError` if values are damaged. `from_plain` has checked their types."""
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
        If it has another version.
    ValueError, KeyError, TypeError, UsageError
        If it is not a file of records. These are `PARSE_ERRORS`.
    """
    content = json.loads(text)
    version = content["format"]
    if type(version) is not int or version < 1:
        raise ValueError(f"version {version!r}")
    if version != FORMAT:
        raise AnotherVersionError(
            f"it has version {version}, from another version of maxslices; this one reads {FORMAT}"
        )
    entries = from_plain(list[Entry], content["entries"], "entries")
    for entry in entries:
        entry.check()
    return entries


def file_text(entries: Sequence[Entry]) -> str:
    """Text of a file of records."""
    return json_text({"format": FORMAT, "entries": to_plain(list(entries))})


def not_understood(path: Path, error: Exception) -> str:
    """Message for a file that is not a file of records."""
    return f"{path} cannot be understood ({type(error).__name__}: {error})"


class Records:
    """Probes on disk, looked up by the key of a request.

    Damaged files are ignored, with a warning. If the request's own file is damaged, the method is
    measured again and the file is replaced. A folder without write access causes a warning when a
    probe is added. Other files that cannot be read, written or deleted raise a `StoreError`.

    Parameters
    ----------
    folder : path-like, optional
        Folder of the files; by default `records_folder`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = records_folder() if folder is None else Path(folder)

    def find(self, key: RequestKey, place: Environment) -> Entry | None:
        """Entry of a request for this device with these versions, or None if missing."""
        entries = self._read(self._path(key, place))
        return entries[0] if entries else None

    def newest(self, key: RequestKey, suits: Callable[[Environment], bool]) -> Entry | None:
        """Newest entry of a request from a place that `suits` accepts, or None if missing."""
        matches = self._listed(f"{_start(key)}*.json")
        return next((entry for entry in reversed(matches) if suits(entry.place)), None)

    def of_other_card(self, key: RequestKey, here: Environment) -> Entry | None:
        """Newest entry from any GPU that is valid for this one too, or None if missing.

        Requests to CuPy's pool are the same on every card with the same libraries. The driver and
        the card's name may differ.
        """
        libraries = here.libraries | {"cuda driver": ""}

        def suits(place: Environment) -> bool:
            return place.device != "cpu" and place.libraries | {"cuda driver": ""} == libraries

        entry = self.newest(key, suits)
        return entry if entry is not None and entry.probe.is_of_any_card else None

    def entries(self, method: str | None = None) -> list[Entry]:
        """List all entries, or those of a method (by full or plain name), oldest first."""
        matches = self._listed("*.json" if method is None else f"*{method}.*.json")
        return [e for e in matches if method in (None, e.question.method, e.question.name)]

    def add(self, key: RequestKey, place: Environment, probe: Probe) -> None:
        """Store a probe, replacing an earlier one with the same key and place.

        Entries of this device for other source code of the method are deleted, because they cannot
        match any request.
        """
        code = key.source, key.package
        try:
            self._write(Entry(key, place, round(time.time(), 6), probe))
            for each in self.entries(key.method):
                question = each.question
                is_old = (question.source, question.package) != code
                if is_old and each.place.device == place.device:
                    self._remove(self._path(question, each.place))
        except StoreError as error:
            message = f"measurements cannot be kept there: {error} with {FOLDER_VARIABLE}"
            warnings.warn(message, stacklevel=2)

    def export(self, path: str | os.PathLike[str], method: str | None = None) -> int:
        """Write all entries, or those of a method, to one file, and return their number."""
        entries = self.entries(method)
        if Path(path).is_dir():
            raise StoreError(f"{path} is a folder: name a file for the records")
        text = file_text(entries)
        with store_errors(Path(path), len(text)):
            replace_text(Path(path), text)
        return len(entries)

    def import_file(self, path: str | os.PathLike[str]) -> int:
        """Add the entries of an exported file, and return their number.

        Of two entries with the same key and place, the newer is kept.

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
            existing = self.find(entry.question, entry.place)
            if existing is None or existing.time_s <= entry.time_s:
                self._write(entry)
        return len(entries)

    def clear(self, method: str | None = None) -> int:
        """Delete all records, or those of a method, and return their number.

        Damaged records are included.
        """
        count = 0
        for name in self._names("*.json"):
            match = _NAME.fullmatch(name)
            if match and method in (None, match[1], match[1].rpartition(".")[2]):
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
        """Entries of the files with such names, oldest first."""
        paths = [self.folder / name for name in self._names(pattern)]
        entries = [entry for path in paths for entry in self._read(path)]
        return sorted(entries, key=lambda entry: entry.time_s)

    def _read(self, path: Path) -> list[Entry]:
        """Entries of a file, empty if it is missing, damaged or of another version."""
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
