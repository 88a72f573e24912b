"""Files whose disk space is freed by threads, while the program goes on.

With the last that has a nameless file open goes its content. A file system that tells the disk of
what becomes free (``discard``) waits for that, piece by piece: an H200's host took 9.4 s for 30 GB
in ten files one after the other, and 2.0 s for all at once. Freed by threads, a run with an 8 GB
intermediate takes 2.7 s in place of 5.7, and one that replaces a result of 6.7 GB 1.5 in place of
1.9 (H200, 2026-11-22).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import IO

from ..system.disk_space import free_in_background


def close_in_background(files: Iterable[IO[bytes]]) -> None:
    """Close files without names, each in a thread of its own, and return at once."""
    for file in files:
        free_in_background(threading.Thread(target=file.close, daemon=True))
