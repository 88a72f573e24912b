"""Results that are written during a run: the base of their writers, names, and removal."""

from __future__ import annotations

import re
import shutil
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import LostResultError, StoreError
from ...system.disk_space import check_absent, check_free_space, store_errors
from ..access import Closing
from ..check_arrays import check_block
from .result_info import ResultInfo

SinkStart = Literal["new", "resume", "join"]
"""How writing a result begins; see `Sink`."""
SinkFormat = Literal["hdf5", "tiff"]
"""File formats of results."""
_RESULT = re.compile(
    r"(result(_8bit|_16bit)?|[0-9]{2,}_\w+)(\.h5|\.tif|\.ome\.zarr)?"
    r"|sweep\.tif|sweep\.png"
)
"""The last result, or the number of a step and its method, in any format; the pictures of a
sweep."""


def is_result_name(name: str) -> bool:
    """True if a run may have written a result of that name.

    Examples
    --------
    >>> [is_result_name(name) for name in ("result.h5", "02_fbp.h5", "03_fbp_8bit")]
    [True, True, True]
    >>> [is_result_name(name) for name in ("scan.h5", "..", "result.h5.bak")]
    [False, False, False]
    """
    return _RESULT.fullmatch(name) is not None


class Sink(Closing):
    """A result that is written block by block, as a file or a folder; closed on leaving ``with``.

    Parameters
    ----------
    path : Path
        An HDF5 file in NeXus style with the data at ``/entry/data/data``, or a folder of TIFFs, one
        a slice. Missing parent folders are made.
    spec : ArraySpec
        The whole result.
    slice_dim : int
        Axis along which it will be viewed.
    start : {"new", "resume", "join"}
        "new": nothing may have its name. "resume": continue what another process wrote. "join":
        write at the same time as other processes to a result that one of them made.
    info : ResultInfo, optional
        What the result is. HDF5 keeps all of it, and the data in the order of its axes: a
        reconstruction as (z, y, x). With angles the result is a scan again. TIFFs keep the pixel
        size.

    Raises
    ------
    StoreError
        If `path` exists already or cannot be made, or the disk has less free space than the result
        needs.
    """

    def __init__(
        self,
        path: Path,
        spec: ArraySpec,
        slice_dim: int,
        start: SinkStart = "new",
        info: ResultInfo | None = None,
    ) -> None:
        self.info = info or ResultInfo()
        self.path = path
        self.spec = spec
        self.slice_dim = slice_dim
        self._needed_bytes = needed_bytes = self._disk_bytes()
        self._open = False
        if start == "new":
            check_absent(path)
        with store_errors(path, needed_bytes):
            if start == "new":
                path.parent.mkdir(parents=True, exist_ok=True)
                check_free_space(path, needed_bytes)
                try:
                    self._create()
                except BaseException:
                    self.close()
                    self._remove()
                    raise
            elif start == "resume":
                self._reopen()
            else:
                self._join()
        self._open = True

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block of the sink's dtype whose first slice along `slice_dim` is `start`.

        Raises
        ------
        StoreError
            If it cannot be written: the disk is full or out of reach.
        """
        check_block(self.spec, slice_dim, start, start + block.shape[slice_dim], block)
        if not self._open:
            raise StoreError(f"{self.path}: is closed, and takes no more blocks")
        with store_errors(self.path, self._needed_bytes):
            self._write(slice_dim, start, block)

    def sync(self) -> None:
        """Put what was written on disk, or on the server of a folder on the network."""
        with store_errors(self.path, self._needed_bytes):
            self._sync()

    def close(self) -> None:
        """Close the result; a second call has no effect."""
        self._open = False
        self._close()

    def _require(self, is_kind: Callable[[Path], bool]) -> None:
        """Check that the unfinished result exists, as a file or as a folder."""
        if self.path.is_symlink() or not is_kind(self.path):
            raise LostResultError(
                f"{self.path}: the unfinished result is not there: start anew with --overwrite"
            )

    @abstractmethod
    def _disk_bytes(self) -> int:
        """Disk space that the result takes."""

    @abstractmethod
    def _create(self) -> None:
        """Create the file or folder."""

    @abstractmethod
    def _reopen(self) -> None:
        """Open the file or folder, also if it was cut to its first slices.

        Raises
        ------
        StoreError
            If it does not exist, or is not such a result.
        """

    def _join(self) -> None:
        """Open what another process has made and writes to, and change nothing."""
        self._reopen()

    @abstractmethod
    def _write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block, whose shape and dtype are right."""

    @abstractmethod
    def _sync(self) -> None:
        """Put on disk what was written."""

    def _close(self) -> None:
        """Close open files; a second call has no effect."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the file or folder, if it exists."""


def remove_result(path: Path) -> None:
    """Remove a finished result, if there is one.

    Parameters
    ----------
    path : Path
        A file, a folder of TIFFs or OME-Zarr, as runs write them.

    Raises
    ------
    StoreError
        If it is a folder with other files in it, which is left as it is, or cannot be removed.
    """
    try:
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            return
        check_removable(path)
        shutil.rmtree(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed ({error.strerror})") from None


def check_removable(path: Path) -> None:
    """Check that a result, if there is one, holds nothing that no run writes.

    Raises
    ------
    StoreError
        If it is a folder with other files in it.
    OSError
        If the folder cannot be read.
    """
    if not path.is_dir() or path.is_symlink():
        return
    is_part = _is_zarr_part if ".ome.zarr" in path.name else _is_tiff_of
    foreign = next((p for p in path.iterdir() if not is_part(path, p)), None)
    if foreign is not None:
        raise StoreError(
            f"{path}: contains {foreign.name}, which no run wrote, so it is not removed: move that "
            "file away, or choose another folder"
        )


def _is_tiff_of(folder: Path, path: Path) -> bool:
    stem, _, number = path.stem.rpartition("_")
    return stem == folder.name and number.isdigit() and path.suffix == ".tif"


def _is_zarr_part(folder: Path, path: Path) -> bool:
    """True for a level of a pyramid and for the group's own file."""
    if path.name.isdecimal():
        return path.is_dir() and not path.is_symlink()
    return path.name == "zarr.json"
