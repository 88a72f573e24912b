"""Open HDF5 files where there is memory for it."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import SourceError
from ..library_errors import cause_of, raise_if_of_system
from ..paths import HDF5_SIGNATURE

OPENING_BYTES = 2**22
"""Memory that must be free before a file is opened: HDF5 takes 2 MB for its caches, and ends the
process where it finds none (version 1.14.6, every allocation of an opening refused in turn)."""


def open_hdf5(path: Path | FileIO, mode: str, **options: Any) -> h5py.File:
    """Open an HDF5 file as `h5py.File` does.

    Raises
    ------
    MemoryError
        If there is none for it.
    """
    np.empty(OPENING_BYTES, np.uint8)  # of pages that are never touched: some microseconds
    return h5py.File(path, mode, **options)


def open_file(path: Path) -> h5py.File:
    """Open an HDF5 file for reading.

    Raises
    ------
    SourceError
        If it is not an HDF5 file, is cut off or is being written.
    """
    try:
        # Without a cache HDF5 reads the wanted part of a chunk, not all of it, and keeps none.
        return open_hdf5(path, "r", rdcc_nbytes=0)
    except BlockingIOError:
        raise SourceError(
            f"{path}: is locked, so some program is writing it: wait until it is done"
        ) from None
    except OSError as error:
        raise_if_of_system(str(path), error)
        if not h5py.is_hdf5(path):
            raise SourceError(f"{path}: is not an HDF5 file, whatever its name says") from None
        if _has_write_flag(path):
            raise SourceError(
                f"{path}: is being written, or was when its program was killed: wait until it is "
                f"done, or run `h5clear -s {path.name}` if no program has it open"
            ) from None
        reason = cause_of(error)
        n_bytes, recorded_bytes = path.stat().st_size, recorded_size(path)
        if recorded_bytes is not None and n_bytes < recorded_bytes:
            raise SourceError(
                f"{path}: is cut off ({n_bytes} of {recorded_bytes} bytes): copy it again, or wait "
                "until it is written"
            ) from None
        raise SourceError(f"{path}: cannot be opened as HDF5 ({reason})") from None


def recorded_size(path: Path) -> int | None:
    """Size that a file should have by its superblock; None if there is none at its beginning.

    See "Disk Format: Level 0A" in the HDF5 File Format Specification. h5py has no error type for
    a file that is cut off.
    """
    with path.open("rb") as file:
        head = file.read(64)
    if len(head) < 64 or not head.startswith(HDF5_SIGNATURE):
        return None
    version = head[8]
    # Where the addresses begin: base address, one other, and then the end of the file.
    first = {0: 24, 1: 28, 2: 12, 3: 12}.get(version)
    if first is None:
        return None
    n_bytes = head[13] if version < 2 else head[9]
    end = first + 2 * n_bytes
    return int.from_bytes(head[end : end + n_bytes], "little")


def _has_write_flag(path: Path) -> bool:
    """True if a file has the mark of one that is open for writing, which a killed program leaves.

    It is a byte of superblocks of version 3 (HDF5 File Format Specification 3.0, II.A).
    """
    with path.open("rb") as file:
        block = file.read(12)
    return (
        block.startswith(HDF5_SIGNATURE) and block[8] == 3 and len(block) == 12 and block[11] != 0
    )
