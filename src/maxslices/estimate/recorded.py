"""Probes kept on disk: one JSON file for each method.

An entry holds the key of a request (method, hash of its source, parameters, dims, dtype: "question"
in the file), the environment of the measurement (device and versions: "place" in the file)
and the probe. It answers where key and environment are equal. For a device that is not present,
the newest entry from a device of its kind answers, whatever its libraries were.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import StoreError, UsageError
from ..measure.cache_dir import FOLDER_VARIABLE, records_folder
from ..model.plain_records import json_text
from ..registry.source_hash import canonical
from ..system.fresh_files import open_lock_file, replace_text
from .probe_result import Probe
from .record_files import (
    FORMAT,
    PARSE_ERRORS,
    Entry,
    checked_entries,
    not_understood,
    read_entries,
)


class Records:
    """Probes on disk, found by the key of a request.

    Reading needs no lock because files are replaced as a whole; writers take a file lock. A file
    that cannot be parsed is renamed, with a warning. A folder that cannot be written to causes
    a warning only: the method is measured again next time.

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
        wanted = canonical(environment)
        found = self.newest(key, lambda place: canonical(place) == wanted)
        return None if found is None else found[0]

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
        wanted, method = canonical(key), str(key["method"])
        entries = [
            entry
            for entry in self._read(method)
            if canonical(entry["question"]) == wanted and suits(entry["place"])
        ]
        if not entries:
            return None
        newest = max(reversed(entries), key=lambda entry: float(entry["time_s"]))
        try:
            return Probe.from_plain(newest["probe"]), str(newest["place"]["device"])
        except PARSE_ERRORS as error:
            self._set_aside(method, error)
            return None

    def of_method(self, method: str) -> list[Entry]:
        """Entries of a method, by its full name; none if its file cannot be read."""
        return self._read(method)

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
            self._merge([entry], drop_stale=True)
        except OSError as error:
            warnings.warn(
                f"{self.folder}: measurements cannot be kept there ({error.strerror}); set "
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
        found = [
            entry
            for name in self._methods()
            if method in (None, name, name.rpartition(".")[2])
            for entry in self._read_whole(name)
        ]
        return sorted(found, key=lambda entry: float(entry["time_s"]))

    def devices(self) -> list[str]:
        """Names of the devices that have entries."""
        return sorted({str(entry["place"]["device"]) for entry in self.entries()})

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
            replace_text(Path(path), json_text({"format": FORMAT, "entries": found}))
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
            entries = checked_entries(json.loads(Path(path).read_text(encoding="utf-8")))
            for entry in entries:
                Probe.from_plain(entry["probe"])
        except OSError as error:
            raise UsageError(f"{path}: records cannot be read: {error.strerror}") from None
        except PARSE_ERRORS as error:
            raise UsageError(
                f"{path} is not a file of records ({error}): maxslices records export makes one"
            ) from None
        try:
            self._merge(entries, drop_stale=False)
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
        if not found:
            return 0
        try:
            with self._locked():
                for name in {str(entry["question"]["method"]) for entry in found}:
                    self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be cleared: {error.strerror}") from None
        return len(found)

    def _path(self, method: str) -> Path:
        return self.folder / f"{method}.json"

    def _methods(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(
                f"{self.folder}: records cannot be read: {error.strerror}; set {FOLDER_VARIABLE} "
                "to a folder that can be read"
            ) from None
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def _read(self, method: str) -> list[Entry]:
        """Read a method's entries; a file that cannot be parsed is renamed."""
        try:
            return read_entries(self._path(method))
        except PARSE_ERRORS as error:
            self._set_aside(method, error)
            return []

    def _read_whole(self, method: str) -> list[Entry]:
        """Read a method's entries and check every probe.

        A file that cannot be parsed stays where it is: it may belong to another program.
        """
        try:
            entries = read_entries(self._path(method))
            for entry in entries:
                Probe.from_plain(entry["probe"])
        except PARSE_ERRORS as error:
            warnings.warn(f"{not_understood(self._path(method), error)}: left out", stacklevel=4)
            return []
        return entries

    def _set_aside(self, method: str, error: Exception) -> None:
        path = self._path(method)
        aside = path.with_name(f"{path.name}.unreadable")
        with suppress(OSError):
            os.replace(path, aside)
        warnings.warn(
            f"{not_understood(path, error)}: it is now {aside.name}, and what it held will be "
            "measured again",
            stacklevel=4,
        )

    def _merge(self, entries: Iterable[Entry], *, drop_stale: bool) -> None:
        by_method: dict[str, list[Entry]] = {}
        for entry in entries:
            by_method.setdefault(str(entry["question"]["method"]), []).append(entry)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            for method, new in by_method.items():
                kept = {_key(entry): entry for entry in self._read(method)}
                for entry in new:
                    if drop_stale:
                        kept = {k: e for k, e in kept.items() if not _makes_stale(entry, e)}
                    earlier = kept.get(_key(entry))
                    if earlier is None or earlier["time_s"] <= entry["time_s"]:
                        kept[_key(entry)] = entry
                content = {"format": FORMAT, "entries": list(kept.values())}
                replace_text(self._path(method), json_text(content))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(open_lock_file(self.folder / ".lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
            yield


def _key(entry: Entry) -> str:
    return canonical([entry["question"], entry["place"]])


def _makes_stale(new: Entry, old: Entry) -> bool:
    """True if `old` is from the same device, but from other source of the method."""
    code = ("source", "package")
    return bool(
        new["place"]["device"] == old["place"]["device"]
        and any(new["question"][name] != old["question"][name] for name in code)
    )
