"""Disk space that is given back, which may take as long as it took to read the file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import IO


class Freeing:
    """Files without names that are closed, each in a thread of its own, while others go on.

    With the last that has a file open goes its content. A file system that tells the disk of
    what becomes free (``discard``) waits for that, piece by piece: an H200's host took 9.4 s for
    30 GB in ten files one after the other, and 2.0 s for all at once.

    Parameters
    ----------
    files : sequence of file
        To be closed.
    """

    def __init__(self, files: Sequence[IO[bytes]]) -> None:
        self._threads = [threading.Thread(target=file.close, daemon=True) for file in files]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Return when all is free again; a second call does nothing."""
        while self._threads:
            self._threads.pop().join()
