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
from ..folders import FOLDER_VARIABLE, records_folder, replace_text
from .fingerprint import canonical
from .probed import Probe

FORMAT = 3
"""Version of the files, raised whenever they or what they mean change: entries of another
version are not answers, and go when the method is measured again. 2: long calls are no longer
taken for the last slope; dtype and dims of the result. 3: no answer beyond what was run where
memory falls with more slices."""

_LATEST_S = 2**36
"""Times after this one, in the year 4147, are none."""

Entry = dict[str, Any]
_FAULTS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What a file that is not one of records leads to when it is read as if it were."""


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
            return _answer(newest["probe"])
        except _FAULTS as error:
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
        """Return all entries, or those of a method, by its full or plain name; oldest first."""
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
            replace_text(Path(path), _text({"format": FORMAT, "entries": found}))
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
            entries = _checked(json.loads(Path(path).read_text(encoding="utf-8")))
            for entry in entries:
                _answer(entry["probe"])
        except OSError as error:
            raise UsageError(f"{path}: records cannot be read: {error.strerror}") from None
        except _FAULTS as error:
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
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def _read(self, method: str) -> list[Entry]:
        """Return a method's entries; a file that has none is set aside for one that will."""
        try:
            return _entries(self._path(method))
        except _FAULTS as error:
            self._set_aside(method, error)
            return []

    def _read_whole(self, method: str) -> list[Entry]:
        """Return a method's entries, all of whose answers are in order.

        What is no file of records stays where it is: it may be somebody else's.
        """
        try:
            entries = _entries(self._path(method))
            for entry in entries:
                _answer(entry["probe"])
        except _FAULTS as error:
            warnings.warn(f"{_not_understood(self._path(method), error)}: left out", stacklevel=4)
            return []
        return entries

    def _set_aside(self, method: str, error: Exception) -> None:
        path = self._path(method)
        aside = path.with_name(f"{path.name}.unreadable")
        with suppress(OSError):
            os.replace(path, aside)
        warnings.warn(
            f"{_not_understood(path, error)}: it is now {aside.name}, and what it held will be "
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
                replace_text(self._path(method), _text(content))

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


def _entries(path: Path) -> list[Entry]:
    """Return the entries of a method's file; none if it is not there, or of another version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return []
    return [] if _is_of_another_version(content) else _checked(content)


def _not_understood(path: Path, error: Exception) -> str:
    return f"{path} cannot be understood ({type(error).__name__}: {error})"


def _is_of_another_version(content: Any) -> bool:
    found = content["format"]
    return type(found) is int and found > 0 and found != FORMAT


def _checked(content: Any) -> list[Entry]:
    """Return the entries of a file.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it is not as it should be.
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
        if not 0 <= float(entry["time_s"]) < _LATEST_S:
            raise ValueError(f"{entry['time_s']} is no time")
        if not isinstance(entry["probe"], dict):
            raise TypeError("an answer is not an object")
    entries: list[Entry] = list(content["entries"])
    return entries


def _answer(plain: Mapping[str, Any]) -> Probe:
    """Return an answer, if it is one.

    Raises
    ------
    ValueError, KeyError, TypeError, OverflowError
        If it is something else.
    """
    found = Probe.from_plain(plain)
    for rung in found.rungs:
        numbers = (rung.n_slices, rung.n_bytes, rung.kept_bytes, rung.outside_bytes)
        if not all(type(number) is int for number in numbers) or min(numbers[:2]) < 0:
            raise ValueError(f"{numbers} are not a call with its bytes")
        if rung.n_slices < 1:
            raise ValueError("a call with no slices")
        for time_s in (rung.duration_s, rung.call_s):
            if type(time_s) not in (int, float) or not 0 <= time_s < _LATEST_S:
                raise ValueError(f"{time_s!r} is no duration")
    for number in (found.answer, found.available_bytes, found.total_slices):
        if type(number) is not int:
            raise ValueError(f"{number!r} is not a number of slices or bytes")
    float(found.duration_s)
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


def _text(content: Any) -> str:
    """Write entries as JSON that people can read: a line for each part and each call."""
    blocks = []
    for entry in content["entries"]:
        probe = dict(entry["probe"])
        rungs = ",\n    ".join(json.dumps(rung) for rung in probe.pop("rungs"))
        parts = [f'"rungs": [\n    {rungs}\n   ]']
        parts += [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in probe.items()]
        lines = [f'"{name}": {json.dumps(entry[name])}' for name in ("question", "place", "time_s")]
        lines.append('"probe": {\n   ' + ",\n   ".join(parts) + "\n  }")
        blocks.append(" {\n  " + ",\n  ".join(lines) + "\n }")
    joined = ",\n".join(blocks)
    return f'{{"format": {content["format"]}, "entries": [\n{joined}\n]}}\n'
