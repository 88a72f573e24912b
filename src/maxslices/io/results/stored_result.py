"""Whole results, read to write other formats, with grey levels, and to draw slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import StoreError
from ..access import Closing
from ..files import library_errors
from ..hdf5.objects import open_hdf5
from .result_format import ResultFormat
from .result_info import ResultInfo
from .sink import DATA_PATH

SAMPLE_VALUES = 2**24
"""Largest number of values for percentiles, in 64 MB. A larger result is sampled evenly, and its
smallest and largest values are added. Its percentile 0.1 then lies between those of 0.098 and
0.102 (three standard deviations)."""


@dataclass(frozen=True, slots=True)
class GreyLevels:
    """Unsigned integers for values: ``value = offset + scale * number``."""

    low: float
    """Value that becomes 0, as do smaller values."""
    high: float
    """Value that becomes the largest number, as do larger values."""
    bits: int
    """8 or 16."""

    @property
    def scale(self) -> float:
        """Step of the value from one number to the next."""
        return (self.high - self.low) / float(2**self.bits - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the numbers."""
        return np.dtype(f"uint{self.bits}")

    def numbers(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert values to rounded numbers; not-a-number becomes 0."""
        if not self.scale:
            return np.zeros(values.shape, self.dtype)
        scaled = np.subtract(values, self.low, dtype=np.float32)
        scaled /= np.float32(self.scale)
        np.clip(scaled, 0, 2**self.bits - 1, out=scaled)
        np.nan_to_num(scaled, copy=False, nan=0)
        np.rint(scaled, out=scaled)
        numbers: NDArray[Any] = scaled.astype(self.dtype)
        return numbers


class WholeResult(Closing):
    """A complete, closed result of a run, with the axes of the file.

    Parameters
    ----------
    path : Path
        The HDF5 file, with any name.
    info : ResultInfo
        Its metadata.

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

    def read(self, *box: slice | int) -> NDArray[Any]:
        """Read a box, or a slice of the first axis.

        Raises
        ------
        SourceError
            If it cannot be read.
        """
        with library_errors(str(self.path)):
            return np.asarray(self._data[box])

    def levels(self, format: ResultFormat) -> GreyLevels | None:
        """Grey levels of a format, computed once; None if it keeps the values."""
        if format.bits is None:
            return None
        key = format.percentiles, format.bits
        if key not in self._levels:
            self._levels[key] = self._find_levels(*key)
        return self._levels[key]

    def slices(
        self, levels: GreyLevels | None, numbers: range | None = None
    ) -> Iterator[NDArray[Any]]:
        """Read slices along the first axis, all or some, converted if levels are given."""
        for number in numbers or range(self.shape[0]):
            values = np.ascontiguousarray(self._data[number])
            yield values if levels is None else levels.numbers(values)

    def _find_levels(self, percentiles: tuple[float, float], bits: int) -> GreyLevels:
        """Find the values at two percentiles of the finite values, as float32."""
        n_slices, n_rows, n_columns = self.shape
        step = -(-n_slices * n_rows * n_columns // SAMPLE_VALUES)
        some, ends = [], np.empty(0, np.float32)
        for number in range(n_slices):
            values = np.float32(self._data[number]).ravel()
            values = values[np.isfinite(values)]
            # Each slice has another offset: a regular grid may sample a line of the image.
            some.append(values[number % step :: step])
            values = np.concatenate([values, ends])
            if step > 1 and values.size:  # for the percentiles 0 and 100
                ends = np.stack([values.min(), values.max()])
        values = np.concatenate([*some, ends])
        if not values.size:
            return GreyLevels(0.0, 0.0, bits)
        low, high = np.percentile(values, percentiles, method="nearest", overwrite_input=True)
        return GreyLevels(float(low), float(high), bits)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


Choice = Callable[[int], Sequence[int]]
"""Takes the number of slices, and returns the indices of those to read."""
