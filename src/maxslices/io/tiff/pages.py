"""The pages of TIFFs: shapes, dtypes, offsets of uncompressed pixels, and decoding."""

from __future__ import annotations

import logging
import lzma
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from ...errors import SourceError
from ..library_errors import cause_of, library_errors, raise_if_of_system, raised_by_library
from ..paths import check_readable
from .bombs import check_inflated, check_stored
from .chain import count_pages


@dataclass(frozen=True, slots=True)
class TiffPage:
    """One frame in a TIFF."""

    path: Path
    """Path of the file."""
    page: int
    """Number of its page in the file."""
    shape: tuple[int, ...]
    """Rows and columns, if it is grey."""
    dtype: np.dtype[Any]
    """As stored, byte order included."""
    offset: int | None
    """Byte at which its pixels begin if they are uncompressed and contiguous, else None."""


def read_pages(path: Path) -> list[TiffPage]:
    """List the frames of a TIFF.

    Raises
    ------
    SourceError
        If it is not a TIFF, is damaged or is cut off.
    """
    check_readable(path)
    with library_errors(str(path)):
        n_pages = count_pages(path)
    with _held_log():
        try:
            with tifffile.TiffFile(path) as file:
                images = list(_images(path, file))
                n_found = len(file.pages)
        except Exception as error:
            raise_if_of_system(str(path), error)
            if not isinstance(error, OSError) and not raised_by_library(error):
                raise
            raise SourceError(f"{path}: cannot be read as TIFF ({cause_of(error)})") from None
        if not images:
            raise SourceError(f"{path}: has no pages: it is damaged; copy it again")
        if n_found != n_pages:
            raise SourceError(
                f"{path}: has {n_pages} pages, of which {n_found} can be read: it is damaged; copy "
                "it again"
            )
    return images


@contextmanager
def _held_log() -> Iterator[None]:
    """Hold back tifffile's log records, and drop them if an error is raised."""
    logger, records = logging.getLogger("tifffile"), SimpleQueue[logging.LogRecord]()

    def hold(record: logging.LogRecord) -> bool:
        records.put(record)
        return False

    logger.addFilter(hold)
    try:
        yield
    finally:
        logger.removeFilter(hold)
    while not records.empty():
        logger.handle(records.get())


def _images(path: Path, file: tifffile.TiffFile) -> Iterator[TiffPage]:
    byteorder, size = file.byteorder, file.filehandle.size
    if len(file.pages) == 1:
        # ImageJ writes stacks of more than 4 GiB as one page with the frames behind it
        stack = file.series[0]
        if stack.ndim == 3 and stack.axes.endswith("YX") and stack.dataoffset is not None:
            dtype = stack.dtype.newbyteorder(byteorder)
            frame_bytes = math.prod(stack.shape[1:]) * dtype.itemsize
            if stack.dataoffset + stack.shape[0] * frame_bytes > size:
                n_whole = max(0, size - stack.dataoffset) // max(1, frame_bytes)
                raise SourceError(
                    f"{path}: is cut off within its page {n_whole} of {stack.shape[0]}: copy it "
                    "again"
                )
            for i in range(stack.shape[0]):
                offset = stack.dataoffset + i * frame_bytes
                yield TiffPage(path, i, tuple(stack.shape[1:]), dtype, offset)
            return
    for i, page in enumerate(file.pages):
        whole = page.aspage()
        if whole.dtype is None:
            raise SourceError(f"{path}: page {i} has no pixels of a known type")
        numbers = (*whole.shape, *whole.dataoffsets, *whole.databytecounts, whole.compression)
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise SourceError(
                f"{path}: page {i} is damaged: its sizes are no numbers; copy it again"
            )
        check_stored(f"{path}: page {i}", whole)
        is_plain = whole.is_final and len(whole.dataoffsets) > 0
        start = whole.dataoffsets[0] if is_plain else None
        stored = whole.databytecounts
        if is_plain:
            stored = (math.prod(whole.shape) * whole.dtype.itemsize,)
        # A file may give fewer sizes than parts; decoding such a page is an error.
        parts = zip(whole.dataoffsets, stored, strict=False)
        if any(offset + n_bytes > size for offset, n_bytes in parts):
            raise SourceError(f"{path}: is cut off within its page {i}: copy it again")
        yield TiffPage(path, i, tuple(whole.shape), whole.dtype.newbyteorder(byteorder), start)


def decode_page(image: TiffPage) -> NDArray[Any]:
    """Decode a frame, as a whole."""
    try:
        with tifffile.TiffFile(image.path) as file:
            page = file.pages[image.page].aspage()
            check_inflated(f"{image.path}: page {image.page}", file, page)
            frame: NDArray[Any] = page.asarray(maxworkers=1)
    except SourceError:
        raise
    except Exception as error:
        raise_if_of_system(f"{image.path}: page {image.page}", error)
        if not isinstance(error, OSError | zlib.error | lzma.LZMAError) and not raised_by_library(
            error
        ):
            raise
        hint = "" if _has_codec(image) else ": install imagecodecs"
        raise SourceError(
            f"{image.path}: page {image.page} cannot be decoded ({cause_of(error)}){hint}"
        ) from None
    if frame.shape != image.shape:
        raise SourceError(
            f"{image.path}: page {image.page} is {frame.shape} pixels and not {image.shape}, as "
            "the file says: it is damaged; copy it again"
        )
    return frame


def _has_codec(image: TiffPage) -> bool:
    """True unless decoding a page needs the package imagecodecs, which is not installed."""
    try:
        with tifffile.TiffFile(image.path) as file:
            page = file.pages[image.page].aspage()
            tifffile.TIFF.DECOMPRESSORS[page.compression]
            tifffile.TIFF.UNPREDICTORS[page.predictor]
    except KeyError:  # what these mappings raise for a codec that they lack
        return False
    except Exception as error:
        if not isinstance(error, OSError) and not raised_by_library(error):
            raise
        return True  # the file is damaged
    return True
