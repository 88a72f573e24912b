"""Probes kept on disk: one JSON file for each, so that writers need no lock.

An entry holds the key of a request (method, hash of its source, parameters, dims, dtype: "question"
in the file), the environment of the measurement (device and versions: "place" in the file)
and the probe. It answers where key and environment are equal. For a device that is not present,
the newest entry from a device of its kind answers, whatever its libraries were.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import StoreError, UsageError
from ..measure.cache_dir import FOLDER_VARIABLE, records_folder
from ..registry.source_hash import canonical
from ..system.fresh_files import replace_text
from .probe_result import Probe
from .record_files import (
    PARSE_ERRORS,
    AnotherVersionError,
    Entry,
    file_text,
    not_understood,
    read_entries,
)

_DIGITS = 16
"""Of the hash in a file's name, in hexadecimal: 64 bits, which no two of some thousand share."""


class Records:
    """Probes on disk, found by the key of a request.

    A file that cannot be understood is left out, with a warning; if it is that of the request, the
    method is measured again and the file replaced. A folder that cannot be written to causes a
    warning only.

    Parameters
    ----------
    folder : path, optional
        By default `records_folder`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = records_folder() if folder is None else Path(folder)

    def find(self, key: Mapping[str, Any], environment: Mapping[str, Any]) -> Probe | None:
        """Look up the probe of a request, from this device with these versions; None if none is.

        Parameters
        ----------
        key : mapping
            From `fingerprint.request_key`.
        environment : mapping
            From `fingerprint.environment`.
        """
        found = self._read(self._path(key, environment))
        return self._probe(found[0]) if found else None

    def newest(
        self, key: Mapping[str, Any], suits: Callable[[Mapping[str, Any]], bool]
    ) -> tuple[Probe, str] | None:
        """Newest probe of a request from a place that suits, and its device; None if there is none.

        Parameters
        ----------
        key : mapping
            From `fingerprint.request_key`.
        suits : callable
            ``suits(place)``, with device and versions as `fingerprint.environment` gives them.
        """
        wanted = canonical(key)
        for entry in reversed(self.of_method(str(key["method"]))):
            if canonical(entry["question"]) == wanted and suits(entry["place"]):
                probe = self._probe(entry)
                return None if probe is None else (probe, str(entry["place"]["device"]))
        return None

    def of_method(self, method: str) -> list[Entry]:
        """Entries of a method, by its full name; oldest first. Their probes are not checked."""
        found = self._entries(method)
        return [entry for entry in found if entry["question"]["method"] == method]

    def add(self, key: Mapping[str, Any], environment: Mapping[str, Any], probe: Probe) -> None:
        """Keep a probe, replacing an earlier one with the same key and environment.

        Entries measured on this device with another source of the method are dropped: no lookup
        can match them any more.
        """
        entry: Entry = {
            "question": dict(key),
            "place": dict(environment),
            "time_s": round(time.time(), 6),
            "probe": probe.as_plain(),
        }
        try:
            self._write(entry)
            for each in self.of_method(key["method"]):
                if _makes_stale(entry, each):
                    self._path(each["question"], each["place"]).unlink(missing_ok=True)
        except (OSError, StoreError) as error:
            why = getattr(error, "strerror", error)
            warnings.warn(
                f"{self.folder}: measurements cannot be kept there ({why}); set "
                f"{FOLDER_VARIABLE} to a folder that can be written to",
                stacklevel=2,
            )

    def entries(self, method: str | None = None) -> list[Entry]:
        """List all entries, or a method's (by full or plain name); oldest first.

        Raises
        ------
        StoreError
            If the folder cannot be read.
        """
        return [entry for entry in self._entries(method) if self._probe(entry) is not None]

    def _entries(self, method: str | None) -> list[Entry]:
        try:
            names = sorted(os.listdir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(
                f"{self.folder}: records cannot be read: {error.strerror}; set {FOLDER_VARIABLE} "
                "to a folder that can be read"
            ) from None
        found: list[Entry] = []
        for name in names:
            full = name.removesuffix(".json").rpartition(".")[0]
            if name.endswith(".json") and method in (None, full, full.rpartition(".")[2]):
                found += self._read(self.folder / name)
        return sorted(found, key=lambda entry: float(entry["time_s"]))

    def export(self, path: str | os.PathLike[str], method: str | None = None) -> int:
        """Write all entries, or a method's, to one file; returns their number.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        found = self.entries(method)
        if Path(path).is_dir():
            raise StoreError(f"{path} is a folder: name a file for the records")
        try:
            replace_text(Path(path), file_text(found))
        except OSError as error:
            raise StoreError(f"{path}: records cannot be written: {error.strerror}") from None
        return len(found)

    def import_file(self, path: str | os.PathLike[str]) -> int:
        """Add the entries of an exported file; returns their number.

        Of two entries with the same key and environment the newer one is kept.

        Raises
        ------
        UsageError
            If the file is not an export of records.
        StoreError
            If the folder cannot be written to.
        """
        try:
            entries = read_entries(Path(path))
            for entry in entries:
                Probe.from_plain(entry["probe"])
        except OSError as error:
            raise UsageError(f"{path}: records cannot be read: {error.strerror}") from None
        except PARSE_ERRORS as error:
            raise UsageError(
                f"{path} is not a file of records ({error}): maxslices records export makes one"
            ) from None
        try:
            for entry in entries:
                known = self._read(self._path(entry["question"], entry["place"]))
                if not known or known[0]["time_s"] <= entry["time_s"]:
                    self._write(entry)
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be written to: {error.strerror}") from None
        return len(entries)

    def clear(self, method: str | None = None) -> int:
        """Delete all entries, or a method's; returns their number.

        Raises
        ------
        StoreError
            If the files cannot be deleted.
        """
        found = self.entries(method)
        try:
            for entry in found:
                self._path(entry["question"], entry["place"]).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be cleared: {error.strerror}") from None
        return len(found)

    def _path(self, key: Mapping[str, Any], environment: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(canonical([key, environment]).encode()).hexdigest()
        return self.folder / f"{key['method']}.{digest[:_DIGITS]}.json"

    def _write(self, entry: Entry) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self._path(entry["question"], entry["place"]), file_text([entry]))

    def _read(self, path: Path) -> list[Entry]:
        """Entry of a file; none if it is missing, of another version or cannot be understood."""
        try:
            return read_entries(path)
        except (OSError, AnotherVersionError):
            return []
        except PARSE_ERRORS as error:
            warnings.warn(f"{not_understood(path, error)}: left out", stacklevel=4)
            return []

    def _probe(self, entry: Entry) -> Probe | None:
        """Probe of an entry; None if it cannot be understood."""
        try:
            return Probe.from_plain(entry["probe"])
        except PARSE_ERRORS as error:
            path = self._path(entry["question"], entry["place"])
            warnings.warn(f"{not_understood(path, error)}: left out", stacklevel=4)
            return None


def _makes_stale(new: Entry, old: Entry) -> bool:
    """True if `old` is from the same device, but from other source of the method."""
    code = ("source", "package")
    return bool(
        new["place"]["device"] == old["place"]["device"]
        and any(new["question"][name] != old["question"][name] for name in code)
    )
