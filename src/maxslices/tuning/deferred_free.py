"""Disk space that is given back, which may take as long as it took to read the file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import IO

from ..system.disk_space import free_in_background, punch_hole


class Freeing:
    """Files without names whose room is given back, by a thread each, while others go on.

    With the last that has a file open goes its content. A file system that tells the disk of
    what becomes free (``discard``) waits for that, piece by piece: an H200's host took 9.4 s for
    30 GB in ten files one after the other, and 2.0 s for all at once.

    Parameters
    ----------
    files : sequence of file
        Open; they are closed in the end.
    """

    def __init__(self, files: Sequence[IO[bytes]]) -> None:
        self._files = files
        self._spans: list[SimpleQueue[tuple[int, int] | None]] = [SimpleQueue() for _ in files]
        self._threads: list[threading.Thread] = []
        self._is_closing = False

    def free(self, number: int, start: int, stop: int) -> None:
        """Begin to give back a part of a file, which nobody reads any more."""
        self._start()
        self._spans[number].put((start, stop))

    def close(self) -> None:
        """Begin to close all files; a second call does nothing."""
        self._start()
        self._is_closing = True
        for spans in self._spans:
            spans.put(None)

    def _start(self) -> None:
        if self._threads or self._is_closing:
            return
        self._threads = [
            threading.Thread(target=self._work, args=pair, daemon=True)
            for pair in zip(self._files, self._spans, strict=True)
        ]
        for thread in self._threads:
            free_in_background(thread)

    def _work(self, file: IO[bytes], spans: SimpleQueue[tuple[int, int] | None]) -> None:
        # What is left when all is closed goes with the file.
        while (span := spans.get()) is not None and not self._is_closing:
            punch_hole(file.fileno(), *span)
        file.close()
