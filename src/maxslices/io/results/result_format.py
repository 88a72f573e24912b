"""Formats of results, and their names for users."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ...errors import UsageError
from ..files import HDF5_SUFFIXES

FormatName = Literal["hdf5", "tiff", "tiff-stack", "ome-zarr"]
"""Kinds of files: HDF5, a folder of TIFFs, one TIFF, and OME-Zarr with a pyramid."""
FORMATS = get_args(FormatName)
_SUFFIXES = {"hdf5": ".h5", "tiff": "", "tiff-stack": ".tif", "ome-zarr": ".ome.zarr"}
DEFAULT_PERCENTILES = (0.1, 99.9)
"""Percentiles that become black and white. One voxel in a thousand is clipped at each end: rings,
hot pixels and metal. ImageJ saturates 0.35 % in total by default."""
_NOT_OF_OME = ("float16", "int64", "uint64")
"""Dtypes without a name in OME-XML."""
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_PERCENTILES = re.compile(f"{_NUMBER}-{_NUMBER}")


@dataclass(frozen=True, slots=True)
class ResultFormat:
    """One format of a run's results."""

    name: FormatName = "hdf5"
    """Kind of file."""
    bits: int | None = None
    """8 or 16 for unsigned integers between two percentiles; None for unchanged values."""
    percentiles: tuple[float, float] = DEFAULT_PERCENTILES
    """Percentiles of the result that become 0 and the largest integer."""
    compressed: bool = False
    """Whether it is losslessly compressed; OME-Zarr always is."""

    def path_of(self, result: Path) -> Path:
        """Path of a result in this format, given its path without a suffix.

        Examples
        --------
        >>> parse_formats("tiff-stack:8")[0].path_of(Path("out/result")).name
        'result_8bit.tif'
        """
        suffix = _SUFFIXES[self.name]
        if self.name == "hdf5" and self.bits is None and result.suffix.lower() in HDF5_SUFFIXES:
            return result
        bits = "" if self.bits is None else f"_{self.bits}bit"
        return result.with_name(f"{result.name}{bits}{suffix}")

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """True if a result of this dtype can be written.

        Examples
        --------
        >>> whole, stack = parse_formats("hdf5,tiff-stack")
        >>> whole.holds(np.dtype("float16")), stack.holds(np.dtype("float16"))
        (True, False)
        """
        if self.bits is not None:  # complex numbers have no order
            return dtype.kind != "c"
        if self.name == "hdf5":
            return True
        if dtype.itemsize > (16 if dtype.kind == "c" else 8):
            return False
        if self.name == "tiff-stack":
            return dtype.name not in _NOT_OF_OME
        return self.name == "tiff" or dtype.kind != "c"

    def n_bytes(self, result_bytes: int, itemsize: int) -> int:
        """Upper bound of the disk space of a result of `result_bytes`, without compression."""
        size = itemsize if self.bits is None else self.bits // 8
        whole = result_bytes // itemsize * size
        return whole + whole // 7 + 1 if self.name == "ome-zarr" else whole

    def __str__(self) -> str:
        parts: list[str] = [self.name]
        if self.bits is not None:
            parts.append(str(self.bits))
            if self.percentiles != DEFAULT_PERCENTILES:
                parts.append("{:g}-{:g}".format(*self.percentiles))
        return ":".join([*parts, "compressed"] if self.compressed else parts)


FormatLike = str | ResultFormat | Sequence[str | ResultFormat]
"""A format, several separated by commas, or a list of them."""


def parse_formats(formats: FormatLike) -> tuple[ResultFormat, ...]:
    """Parse formats: ``hdf5``, ``tiff:8``, ``hdf5,tiff-stack:16:1-99:compressed``.

    Raises
    ------
    UsageError
        If a format is unknown, two have the same file name, or a package for one is missing.

    Examples
    --------
    >>> [str(each) for each in parse_formats("hdf5,tiff-stack:8:1-99")]
    ['hdf5', 'tiff-stack:8:1-99']
    """
    parsed: list[ResultFormat] = []
    for each in [formats] if isinstance(formats, str | ResultFormat) else formats:
        if isinstance(each, ResultFormat):
            parsed.append(each)
        elif isinstance(each, str):
            parsed += [_parse(text.strip()) for text in each.split(",")]
        else:
            raise UsageError(f"a format is text, not {each!r}")
    if not parsed:
        raise UsageError(f"no format is given. Choose from {', '.join(FORMATS)}")
    names = [each.path_of(Path("result")).name for each in parsed]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two formats have the same name, {name}. Omit one of them")
    if any(each.name == "ome-zarr" for each in parsed) and not importlib.util.find_spec("zarr"):
        raise UsageError("ome-zarr needs zarr: pip install 'maxslices[ome-zarr]'")
    return tuple(parsed)


def _parse(text: str) -> ResultFormat:
    name, *parts = text.split(":")
    if name not in FORMATS:
        raise UsageError(
            f"{name!r} is not a format of results. Choose from {', '.join(FORMATS)}, each followed "
            "by :8 or :16 (bits), :LOW-HIGH (percentiles) and :compressed if needed"
        )
    bits, percentiles, compressed = None, None, False
    for part in parts:
        match = _PERCENTILES.fullmatch(part)
        if part in ("8", "16") and bits is None:
            bits = int(part)
        elif part == "compressed":
            compressed = True
        elif match is not None and percentiles is None:
            percentiles = float(match[1]), float(match[2])
            if not 0 <= percentiles[0] < percentiles[1] <= 100:
                raise UsageError(f"the percentiles of {text} must be 0 <= LOW < HIGH <= 100")
        else:
            raise UsageError(
                f"{part!r} in the format {text} is not valid. Use 8, 16, LOW-HIGH (percentiles, as "
                "in 1-99) or compressed"
            )
    if percentiles is not None and bits is None:
        raise UsageError(f"the format {text} has percentiles, which need 8 or 16 bits: add :8")
    return ResultFormat(name, bits, percentiles or DEFAULT_PERCENTILES, compressed)  # type: ignore[arg-type]
