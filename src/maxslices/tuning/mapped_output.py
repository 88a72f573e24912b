"""Part of a file as memory, which several threads may write to at the same time."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_KEEP_ROOM = ("ext4", "xfs")
"""File systems that write to reserved room without needing more, whatever happens."""


def is_safe_to_map(path: Path) -> bool:
    """Tell whether a file whose room is reserved can be written to as memory without fear.

    A write to memory cannot fail as a call does: where there is no room, the system ends the
    process.

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
    # of each mount: its number, its parent's, the device, ..., "-", the file system's type, ...
    mounts = [line.partition(" - ") for line in lines]
    types = {after.split()[0] for before, _, after in mounts if before.split()[2] == wanted}
    return bool(types) and types <= set(_KEEP_ROOM)


def file_map(fd: int, offset: int, n_bytes: int) -> NDArray[np.uint8]:
    """Return a part of a file as memory, until nobody uses that any more.

    With large pages, where the file system has them: with small ones threads wait for one
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
