"""The journal of a run: a file on disk with its progress, from which a stopped run resumes.

The file has lines of JSON, each with a checksum. The first line contains the plan and a description
of the methods, the device and the input. Each further line is an event, written after its data. A
partial line and all lines after it are ignored.

When a process ends, even by ``kill -9``, everything that it has written remains in the page cache.
When the machine stops, data are lost that the system has not yet written to disk. So a thread syncs
each file system that the run writes to, every `SYNC_INTERVAL_S`, and then notes how many lines are
safe.

Side results are not pickled, because reading a pickle runs the code in it.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import threading
import warnings
import zlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StoreError
from ...system.disk_space import store_errors, sync_file_system
from ...system.files import check_one_name, replace_text
from ...system.threads import WorkThread

_KIND = "kind"
_SEALED = re.compile(rb'(\{.*),"crc":([0-9]{1,10})\}', re.DOTALL)


def seal(entry: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    """Format an entry as a line.

    Parameters
    ----------
    entry : mapping
        Values of JSON, at least one.
    before : int
        Checksum of the previous line; 0 for the first.

    Returns
    -------
    bytes
        The line.
    int
        Its checksum.
    """
    body = json.dumps(entry, separators=(",", ":")).encode()[:-1]
    checksum = zlib.crc32(body, before)
    return b'%s,"crc":%d}\n' % (body, checksum), checksum


def unseal(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Read lines until one is damaged, or does not follow the line before it.

    Returns
    -------
    list of dict
        Entries of the valid lines.
    int
        Checksum of the last valid line.
    """
    entries: list[dict[str, Any]] = []
    checksum = 0
    for line in lines:
        match = _SEALED.fullmatch(line)
        if match is None or zlib.crc32(match[1], checksum) != int(match[2]):
            break
        checksum = int(match[2])
        entries.append(json.loads(match[1] + b"}"))
    return entries, checksum


def encode(value: Any) -> Any:
    """Convert a value to JSON types, from which `decode` restores its value and type.

    Raises
    ------
    TypeError
        If it is not a number, a string, None, a NumPy array or scalar, or a list, tuple or dict of
        these.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        items = [encode(item) for item in value]
        return items if isinstance(value, list) else {_KIND: "tuple", "items": items}
    if type(value) is dict:
        pairs = [[encode(key), encode(item)] for key, item in value.items()]
        return {_KIND: "dict", "items": pairs}
    is_array = type(value) is np.ndarray
    if (is_array or isinstance(value, np.generic)) and value.dtype.kind in "biufcSU":
        text = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        entry = {_KIND: "array" if is_array else "scalar", "dtype": value.dtype.str}
        return {**entry, "shape": list(value.shape), "bytes": text}
    raise TypeError(f"{type(value).__name__} cannot be written to the journal")


def decode(value: Any) -> Any:
    """Restore a value that `encode` converted.

    Raises
    ------
    ValueError, KeyError, TypeError
        If `encode` does not make such a value.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value[_KIND]
    if kind == "tuple":
        return tuple(decode(item) for item in value["items"])
    if kind == "dict":
        return {decode(key): decode(item) for key, item in value["items"]}
    data = base64.b64decode(value["bytes"], validate=True)
    # `frombuffer` refuses dtypes of empty strings.
    array = np.ndarray(value["shape"], np.dtype(value["dtype"]), data).copy()
    return array if kind == "array" else array[()]


SYNC_INTERVAL_S = 30.0
"""Seconds between syncs. At this age Linux writes data to disk by itself
(``vm.dirty_expire_centisecs``), so a sync adds little."""
_APPENDING = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Journal:
    """The journal of a run, to which any thread appends events.

    Parameters
    ----------
    path : Path
        The journal.
    n_lines : int
        Number of valid lines. The lines after them are removed.
    """

    def __init__(self, path: Path, n_lines: int) -> None:
        self._path, self._n_lines = path, n_lines
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._other_folders: dict[int, int] = {}  # number of a file system -> open folder on it
        with store_errors(path, 0):
            check_one_name(path, path.lstat())
            self._fd = os.open(path, _APPENDING)
            lines = path.read_bytes().splitlines(keepends=True)
            self._n_bytes = sum(map(len, lines[:n_lines]))
            _, self._checksum = unseal(line.rstrip(b"\n") for line in lines[:n_lines])
            os.ftruncate(self._fd, self._n_bytes)
        WorkThread(self._sync, "journal").start()  # not joined, because a sync may take long

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """Create a journal with its first line, atomically."""
        line, _ = seal({**header, "boot": boot_id()}, 0)
        with store_errors(path, 0):
            replace_text(path, line.decode("ascii"))
        return cls(path, 1)

    def syncs(self, folder: Path) -> None:
        """Also sync the file system of a folder, for later lines about files there."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with self._lock:
            device = os.fstat(fd).st_dev
            is_known = self._fd < 0 or device == os.fstat(self._fd).st_dev
            if is_known or device in self._other_folders:
                os.close(fd)
            else:
                self._other_folders[device] = fd

    def note(self, event: str, **entries: Any) -> None:
        """Note an event.

        Parameters
        ----------
        event : {"begin", "finished", "moving", "resumed"}
            A section begins with its first slice, so its earlier lines do not count. A section is
            finished. All files of the run are complete, and are moved out of the work folder. The
            run resumes in another process.
        **entries
            The ``section``. With "begin" the ``layout`` of the scratch files with its output, if
            these outlive the process. With "finished" its ``report``.
        """
        boot = {"boot": boot_id()} if event == "resumed" else {}
        self._add({"event": event, **entries, **boot})

    def side(self, step: int, value: Any) -> bool:
        """Note the side results of a step; False if they cannot be encoded."""
        return self._add({"event": "side", "step": step, "value": value}, "value")

    def done(
        self, section: int, start: int, stop: int, block: int, values: Mapping[int, Any]
    ) -> bool:
        """Note that the results of a block are written.

        Parameters
        ----------
        section : int
            Index of the section.
        start, stop : int
            First slice of the block, and one past its last.
        block : int
            Slices in a full block at this time.
        values : mapping
            Side results of the block by the index of their step in the section.

        Returns
        -------
        bool
            False if the side results cannot be encoded.
        """
        entry: dict[str, Any] = {"event": "done", "section": section}
        entry |= {"start": start, "stop": stop, "block": block}
        if values:
            entry["values"] = [list(each) for each in values.items()]
        return self._add(entry, "values" if values else None)

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        self._ended.set()
        with self._lock:
            fd, self._fd = self._fd, -1
            for each in (*self._other_folders.values(), *([fd] if fd >= 0 else [])):
                os.close(each)
            self._other_folders.clear()

    def _add(self, entry: dict[str, Any], encoded: str | None = None) -> bool:
        """Append a line in one call; False if the value of key `encoded` cannot be encoded."""
        if encoded is not None:
            try:
                entry[encoded] = encode(entry[encoded])
            except TypeError:
                return False
        with self._lock, store_errors(self._path, 0):
            line, checksum = seal(entry, self._checksum)
            try:
                if os.write(self._fd, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._fd, self._n_bytes)  # remove a partial line
                raise
            self._n_lines, self._n_bytes = self._n_lines + 1, self._n_bytes + len(line)
            self._checksum = checksum
        return True

    def _sync(self) -> None:
        """Sync again and again.

        After an error, no more lines are noted as safe. Linux reports data that it could not write
        only once and drops them, and the next sync succeeds.
        """
        while not self._ended.wait(SYNC_INTERVAL_S):
            try:
                self._sync_once()
            except OSError as error:
                warnings.warn(
                    f"{self._path}: the disk could not store all data ({error.strerror}). If the "
                    "machine stops, a resumed run begins at the last slices that were stored",
                    stacklevel=2,
                )
                return

    def _sync_once(self) -> None:
        """Sync each file system that the run writes to, then note how many lines are safe."""
        with ExitStack() as opened:
            with self._lock:
                if self._fd < 0:
                    return
                n_lines = self._n_lines
                fds = []
                for fd in (self._fd, *self._other_folders.values()):
                    fds.append(os.dup(fd))
                    opened.callback(os.close, fds[-1])
            for fd in fds:
                sync_file_system(fd)
            with suppress(StoreError):  # closed meanwhile, or full, which the next block reports
                self._add({"event": "synced", "n_lines": n_lines})
                os.fdatasync(fds[0])


def boot_id() -> str:
    """Identifier of the last boot of the machine; "" if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
