"""What a scan is to the runner, and how a path becomes one."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from ..model.arrays import ArraySpec
from .loader_options import LoaderOptions
from .paths import HDF5_SUFFIXES, TIFF_SUFFIXES, holds_hdf5, look_at
from .side_name import SideName


@runtime_checkable
class Source(Protocol):
    """A scan that is read block by block; never held in memory as a whole.

    Axes are (angles, detector_y, detector_x). Darks, flats and frames marked invalid are
    no part of the data. Everything that can be wrong with a file is found when the source
    is opened, except what only reading can show (a damaged chunk, a missing codec).
    """

    @property
    def name(self) -> str:
        """What messages call it: the file, and the data set in it."""
        ...

    @property
    def spec(self) -> ArraySpec:
        """Shape and native dtype of the projections."""
        ...

    @property
    def flats(self) -> ArraySpec | None:
        """Shape (frames, detector_y, detector_x) and dtype of the flats; None without any."""
        ...

    @property
    def darks(self) -> ArraySpec | None:
        """Shape (frames, detector_y, detector_x) and dtype of the darks; None without any."""
        ...

    @property
    def angles(self) -> NDArray[np.float32] | None:
        """Angle of each projection in radians, or None where the scan does not say."""
        ...

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` (excluded) along `slice_dim` (0 or 1) into `out`.

        Parameters
        ----------
        slice_dim : int
            0 for projections, 1 for sinograms.
        start, stop : int
            Slices to read.
        out : ndarray
            C-contiguous, of the block's shape and of the source's dtype.

        Raises
        ------
        SourceError
            If the file cannot be read.
        """
        ...

    def read_side(self, name: SideName, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        """Return flats or darks for a block.

        Parameters
        ----------
        name : {"flats", "darks"}
            Which of them.
        slice_dim : int
            0 returns the whole stack, whatever `start` and `stop`; 1 the rows `start` to
            `stop` of each frame.
        start, stop : int
            Slices of the block.

        Returns
        -------
        ndarray
            Shape (frames, detector_y or ``stop - start``, detector_x).

        Raises
        ------
        SourceError
            If there are none, or the file cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def open_source(
    scan: str | os.PathLike[str] | NDArray[Any] | Source,
    options: LoaderOptions | None = None,
) -> Source:
    """Open a scan, whatever it is.

    Parameters
    ----------
    scan : path, ndarray or Source
        An HDF5 or NeXus file, an ``.npy`` file, a folder of TIFFs (one a projection, in
        natural order of their names), one TIFF of many pages, a 3D array, or a source that
        is open already, which is returned as it is.
    options : LoaderOptions, optional
        Where in the file things are, and what is elsewhere; by default everything is
        looked for.

    Returns
    -------
    Source
        To be closed by the caller, or used in a ``with`` statement.

    Raises
    ------
    SourceError
        If it is not there, not readable or not a scan.
    """
    options = options or LoaderOptions()
    if isinstance(scan, np.ndarray):
        from .array_source import array_source

        return array_source(scan, options)
    if not isinstance(scan, str | os.PathLike):
        if isinstance(scan, Source):
            return scan
        raise SourceError(
            f"a {type(scan).__name__} is not a scan: give a path, a NumPy array or a Source"
        )
    if not os.fspath(scan):
        raise SourceError("the path of the scan is empty; '.' is the folder one is in")
    path = Path(scan)
    kind = look_at(path)
    suffix = path.suffix.lower()
    if kind == "folder" or suffix in TIFF_SUFFIXES:
        from .tiff_source import tiff_source

        return tiff_source(path, options)
    if suffix == ".npy":
        from .array_source import npy_source

        return npy_source(path, options)
    if suffix in HDF5_SUFFIXES or holds_hdf5(path):
        from .hdf5_source import hdf5_source

        return hdf5_source(path, options)
    raise SourceError(
        f"{path}: {suffix or 'a file without a suffix'} is not a kind of scan that can be read: "
        f"give HDF5 ({' '.join(HDF5_SUFFIXES)}), .npy, a TIFF or a folder of TIFFs"
    )
