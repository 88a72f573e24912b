"""What was probed, kept for next time: one JSON file for each method.

An entry answers one question (method with its source, parameters, slices, dtype) at one place
(device, versions of the libraries). It is used where both are the same, to the letter; for a
device that is not there, the newest answer from a device of that name is.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import StoreError, UsageError
from ..measure.cache_dir import FOLDER_VARIABLE, records_folder, replace_text
from .fingerprint import canonical
from .probe_result import Probe
from .record_files import (
    FAULTS,
    FORMAT,
    Entry,
    answer_of,
    checked,
    entries_of,
    not_understood,
    text_of,
)


class Records:
    """Answers of `probe` on disk.

    Reading needs no lock, since files are replaced as a whole; writers wait for one another.
    A file that cannot be understood is set aside with a warning. A folder that cannot be
    written to is a warning too: nothing but time is lost.

    Parameters
    ----------
    folder : path, optional
        By default `records_folder`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = records_folder() if folder is None else Path(folder)

    def find(
        self,
        question: Mapping[str, Any],
        place: Mapping[str, Any] | None = None,
        *,
        device: str = "",
    ) -> Probe | None:
        """Return the answer to a question, or None.

        Parameters
        ----------
        question : mapping
            As `fingerprint.question` returns it.
        place : mapping
            As `fingerprint.place` returns it: device and libraries must be the same.
        device : str
            In place of that, the name of a device that need not be there: the newest answer
            from it, whatever its libraries were.
        """
        wanted, method = canonical(question), str(question["method"])
        newest: Entry | None = None
        for entry in self._read(method):
            if canonical(entry["question"]) != wanted:
                continue
            at = entry["place"]
            if place is not None and canonical(at) != canonical(place):
                continue
            if place is None and at["device"].casefold() != device.casefold():
                continue
            if newest is None or entry["time_s"] >= newest["time_s"]:
                newest = entry
        if newest is None:
            return None
        try:
            return answer_of(newest["probe"])
        except FAULTS as error:
            self._set_aside(method, error)
            return None

    def add(self, question: Mapping[str, Any], place: Mapping[str, Any], probe: Probe) -> None:
        """Keep an answer, in place of an earlier one to the same question at the same place.

        What was measured with other source of the method on this device is dropped: it will
        never be asked for again.
        """
        entry: Entry = {
            "question": dict(question),
            "place": dict(place),
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
        """Return all entries, or those of a method, by its full or plain name; oldest first.

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
        """Return the names of the devices that there are answers from."""
        return sorted({str(entry["place"]["device"]) for entry in self.entries()})

    def export(self, path: str | os.PathLike[str], method: str | None = None) -> int:
        """Write all entries, or a method's, into one file; return how many.

        Raises
        ------
        StoreError
            If it cannot be written.
        """
        found = self.entries(method)
        if Path(path).is_dir():
            raise StoreError(f"{path} is a folder: name a file for the records")
        try:
            replace_text(Path(path), text_of({"format": FORMAT, "entries": found}))
        except OSError as error:
            raise StoreError(f"{path}: records cannot be written: {error.strerror}") from None
        return len(found)

    def import_file(self, path: str | os.PathLike[str]) -> int:
        """Add the entries of an exported file; return how many. The newer of two stays.

        Raises
        ------
        UsageError
            If it is no such file.
        StoreError
            If the folder cannot be written to.
        """
        try:
            entries = checked(json.loads(Path(path).read_text(encoding="utf-8")))
            for entry in entries:
                answer_of(entry["probe"])
        except OSError as error:
            raise UsageError(f"{path}: records cannot be read: {error.strerror}") from None
        except FAULTS as error:
            raise UsageError(
                f"{path} is not a file of records ({error}): maxslices records export makes one"
            ) from None
        try:
            self._merge(entries, drop_stale=False)
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be written to: {error.strerror}") from None
        return len(entries)

    def clear(self, method: str | None = None) -> int:
        """Delete all entries, or a method's; return how many there were.

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
        """Return a method's entries; a file that has none is set aside for one that will."""
        try:
            return entries_of(self._path(method))
        except FAULTS as error:
            self._set_aside(method, error)
            return []

    def _read_whole(self, method: str) -> list[Entry]:
        """Return a method's entries, all of whose answers are in order.

        What is no file of records stays where it is: it may be somebody else's.
        """
        try:
            entries = entries_of(self._path(method))
            for entry in entries:
                answer_of(entry["probe"])
        except FAULTS as error:
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
                replace_text(self._path(method), text_of(content))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
            yield


def _key(entry: Entry) -> str:
    return canonical([entry["question"], entry["place"]])


def _makes_stale(new: Entry, old: Entry) -> bool:
    """Tell whether an entry is from the same device, but from other source of the method."""
    code = ("source", "package")
    return bool(
        new["place"]["device"] == old["place"]["device"]
        and any(new["question"][name] != old["question"][name] for name in code)
    )
