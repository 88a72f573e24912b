"""The journal of a run: what is done, on disk, so that a run that was stopped can go on.

It is a file of lines of JSON, each with a checksum. The first one holds the plan and what the run
was made for. Each further line is an event, written after the data that it speaks of. A line that
was cut off ends what is believed.

The end of a process, even by ``kill -9``, loses nothing that was written before: it is in the page
cache. The end of the machine loses what the system had not written to disk yet. So every
`SYNC_INTERVAL_S` a thread syncs each file system that the run writes to, and then notes how many
lines are safe.

Side results are not pickled: to read a pickle is to run what it says.
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
    """Write an entry as a line.

    Parameters
    ----------
    entry : mapping
        Plain values, at least one.
    before : int
        Checksum of the line before; 0 for the first.

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
    """Read lines up to one that is damaged, or that has lost the line before.

    Returns
    -------
    list of dict
        Their entries.
    int
        Checksum of the last of them.
    """
    entries: list[dict[str, Any]] = []
    checksum = 0
    for line in lines:
        found = _SEALED.fullmatch(line)
        if found is None or zlib.crc32(found[1], checksum) != int(found[2]):
            break
        checksum = int(found[2])
        entries.append(json.loads(found[1] + b"}"))
    return entries, checksum


def encode(value: Any) -> Any:
    """Turn a value into one of JSON, from which `decode` makes an equal one of the same type.

    Raises
    ------
    TypeError
        If it is not a number, a text, None, a NumPy array or scalar, or a list, tuple or dict of
        such.
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
    raise TypeError(f"{type(value).__name__} cannot be written down")


def decode(value: Any) -> Any:
    """Make the value that `encode` turned into one of JSON.

    Raises
    ------
    ValueError, KeyError, TypeError
        If it did not.
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
    # Not `frombuffer`, which refuses texts without a character.
    array = np.ndarray(value["shape"], np.dtype(value["dtype"]), data).copy()
    return array if kind == "array" else array[()]


SYNC_INTERVAL_S = 30.0
"""Seconds between syncs: the age at which Linux writes data to disk by itself
(``vm.dirty_expire_centisecs``), so that a sync has little to write that is not due anyway."""
_APPENDING = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Journal:
    """Appends events to the journal of a run, from any thread.

    Parameters
    ----------
    path : Path
        The journal.
    n_lines : int
        Lines of it that are believed; what follows is removed.
    """

    def __init__(self, path: Path, n_lines: int) -> None:
        self._path, self._n_lines = path, n_lines
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._others: dict[int, int] = {}  # file system -> open folder on it
        with store_errors(path, 0):
            check_one_name(path, path.lstat())
            self._fd = os.open(path, _APPENDING)
            lines = path.read_bytes().splitlines(keepends=True)
            self._n_bytes = sum(map(len, lines[:n_lines]))
            _, self._checksum = unseal(line.rstrip(b"\n") for line in lines[:n_lines])
            os.ftruncate(self._fd, self._n_bytes)
        WorkThread(self._sync, "journal").start()  # nobody waits for it: a sync may take long

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> Journal:
        """Create a journal with its first line, at once or not at all."""
        line, _ = seal({**header, "boot": boot_id()}, 0)
        with store_errors(path, 0):
            replace_text(path, line.decode("ascii"))
        return cls(path, 1)

    def syncs(self, folder: Path) -> None:
        """Sync the file system of a folder too: later lines speak of files there."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with self._lock:
            device = os.fstat(fd).st_dev
            is_known = self._fd < 0 or device == os.fstat(self._fd).st_dev
            if is_known or device in self._others:
                os.close(fd)
            else:
                self._others[device] = fd

    def note(self, event: str, **entries: Any) -> None:
        """Note an event.

        Parameters
        ----------
        event : {"begin", "finished", "moving", "resumed"}
            A section begins with its first slice, and what it did before does not count; it is
            finished; all files of the run are whole, and are moved out of its folder from here; the
            run continues in another process.
        **entries
            The ``section``; for "begin" the ``layout`` of the scratch files with its output, if
            there are some that stay; for "finished" its ``report``.
        """
        boot = {"boot": boot_id()} if event == "resumed" else {}
        self._add({"event": event, **entries, **boot})

    def side(self, step: int, value: Any) -> bool:
        """Note the side results of a step; False if they cannot be written down."""
        return self._add({"event": "side", "step": step, "value": value}, "value")

    def done(
        self, section: int, start: int, stop: int, block: int, values: Mapping[int, Any]
    ) -> bool:
        """Note that a block is written.

        Parameters
        ----------
        section : int
            Index of the section.
        start, stop : int
            First slice of the block, and one past its last.
        block : int
            Slices in a block at this time.
        values : mapping
            Side results of the block by the index of their step in the section.

        Returns
        -------
        bool
            False if they cannot be written down.
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
            for each in (*self._others.values(), *([fd] if fd >= 0 else [])):
                os.close(each)
            self._others.clear()

    def _add(self, entry: dict[str, Any], encoded: str | None = None) -> bool:
        """Append a line, in one call; False if its entry `encoded` cannot be written down."""
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
                os.ftruncate(self._fd, self._n_bytes)  # a part of a line
                raise
            self._n_lines, self._n_bytes = self._n_lines + 1, self._n_bytes + len(line)
            self._checksum = checksum
        return True

    def _sync(self) -> None:
        """Have all that was written so far put on disk, time and again.

        After an error no line is called safe any more: Linux reports data that it could not write
        once, drops them, and the next sync succeeds.
        """
        while not self._ended.wait(SYNC_INTERVAL_S):
            try:
                self._sync_once()
            except OSError as error:
                warnings.warn(
                    f"{self._path}: what the run wrote cannot be put on disk safely "
                    f"({error.strerror}): if the machine stops, a resumed run begins at the last "
                    "slices that were",
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
                for fd in (self._fd, *self._others.values()):
                    fds.append(os.dup(fd))
                    opened.callback(os.close, fds[-1])
            for fd in fds:
                sync_file_system(fd)
            with suppress(StoreError):  # closed meanwhile; or full, as the next block says
                self._add({"event": "synced", "n_lines": n_lines})
                os.fdatasync(fds[0])


def boot_id() -> str:
    """Identifier of the time since the machine was started; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
