"""A whole result in HDF5, read to be written in other formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...errors import StoreError
from ..hdf5.open_hdf5 import open_hdf5
from ..library_errors import library_errors
from .grey_levels import GreyLevels, find_levels
from .hdf5_sink import DATA_PATH
from .result_format import ResultFormat
from .result_info import ResultInfo


class WholeResult:
    """A result that a run wrote, whole and closed; its axes are those of the file.

    Parameters
    ----------
    path : Path
        The HDF5 file, under whatever name.
    info : ResultInfo
        What it is.

    Raises
    ------
    StoreError
        If it cannot be read.
    """

    def __init__(self, path: Path, info: ResultInfo) -> None:
        self.path, self.info = path, info
        self._levels: dict[tuple[tuple[float, float], int], GreyLevels] = {}
        try:
            with library_errors(str(path)):
                self._file = open_hdf5(path, "r")
                self._data = self._file[DATA_PATH]
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape in the file."""
        first, second, third = self._data.shape
        return first, second, third

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype in the file."""
        dtype: np.dtype[Any] = self._data.dtype
        return dtype

    def read(self, *box: slice) -> NDArray[Any]:
        """Read a box."""
        return np.asarray(self._data[box])

    def levels(self, format: ResultFormat) -> GreyLevels | None:
        """Grey levels of a format, found when first asked for; None if it keeps the values."""
        if format.bits is None:
            return None
        key = format.percentiles, format.bits
        if key not in self._levels:
            self._levels[key] = find_levels(self._pieces, *key)
        return self._levels[key]

    def slices(self, levels: GreyLevels | None) -> Iterator[NDArray[Any]]:
        """Read slice after slice along the first axis, as grey levels if given."""
        for number in range(self.shape[0]):
            values = np.ascontiguousarray(self._data[number])
            yield values if levels is None else levels.numbers(values)

    def _pieces(self) -> Iterator[NDArray[Any]]:
        """Read all, slice after slice."""
        for number in range(self.shape[0]):
            yield self._data[number]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()
