"""Map a part of a file into memory, so that several threads write to it at the same time.

`pwrite` into the page cache reaches 5.0 GB/s however many threads write. Ten threads that write to
a mapping in large pages reach 18.3 GB/s (ext4, Linux 6.18).

Without, httomo's pipeline with its result saved takes 31 % longer, and twice the processor time
(H200, 2026-11-22).
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SAFE_FILE_SYSTEMS = ("ext4", "xfs")
"""File systems where a write to allocated space never needs more space."""


def is_safe_to_map(path: Path) -> bool:
    """True if writing to a mapping of a file cannot run out of space, once that is allocated.

    A call that finds no space raises an error. A write to a mapping ends the process.

    Parameters
    ----------
    path : Path
        The file.
    """
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:  # not on every system
        return False
    # A line: mount ID, parent's ID, device, ..., "-", file system type, ...
    mounts = [line.partition(" - ") for line in lines]
    types = {after.split()[0] for before, _, after in mounts if before.split()[2] == wanted}
    return bool(types) and types <= set(_SAFE_FILE_SYSTEMS)


def file_map(fd: int, offset: int, n_bytes: int) -> NDArray[np.uint8]:
    """Part of a file as an array, mapped until the array is freed.

    It has large pages if the file system supports them. With small ones the threads wait for one
    another again.

    Parameters
    ----------
    fd : int
        The file, open for reading and writing, at least as long.
    offset, n_bytes : int
        Where the part begins, and its length.
    """
    lead = offset % mmap.ALLOCATIONGRANULARITY
    memory = mmap.mmap(fd, lead + n_bytes, offset=offset - lead)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[lead:]
