"""The pages of TIFFs: what frames there are, where their pixels lie, and what has to be decoded."""

from __future__ import annotations

import logging
import lzma
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

from ..errors import SourceError
from .paths import check_readable

_CODEC_ERRORS = (zlib.error, lzma.LZMAError, RuntimeError)
"""What tifffile's codecs raise on damaged data; those of imagecodecs are RuntimeErrors."""


@dataclass(frozen=True, slots=True)
class TiffPage:
    """One frame in a file."""

    path: Path
    """The file."""
    page: int
    """Number of its page in the file."""
    shape: tuple[int, ...]
    """Rows and columns, if it is grey."""
    dtype: np.dtype[Any]
    """As stored, byte order included."""
    offset: int | None
    """Where its pixels start, if they lie there uncompressed and in order."""


def read_pages(path: Path) -> list[TiffPage]:
    """Return the frames of a file."""
    check_readable(path)
    size_bytes = path.stat().st_size
    with _said_once():
        try:
            with tifffile.TiffFile(path) as file:
                images = list(_images(path, file))
        except (tifffile.TiffFileError, ValueError, OSError, IndexError) as error:
            raise SourceError(f"{path}: cannot be read as TIFF ({error})") from None
        if not images:
            raise SourceError(f"{path}: has no pages: it is damaged; copy it again")
        for image in images:
            n_bytes = int(np.prod(image.shape)) * image.dtype.itemsize
            if image.offset is not None and image.offset + n_bytes > size_bytes:
                raise SourceError(f"{path}: is cut off within its page {image.page}: copy it again")
    return images


@contextmanager
def _said_once() -> Iterator[None]:
    """Hold back what tifffile logs, and drop it where an error says what is wrong."""
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
    byteorder = file.byteorder
    if len(file.pages) == 1:
        # ImageJ writes stacks of more than 4 GiB as one page with the frames behind it
        stack = file.series[0]
        if stack.ndim == 3 and stack.axes.endswith("YX") and stack.dataoffset is not None:
            dtype = stack.dtype.newbyteorder(byteorder)
            frame_bytes = int(np.prod(stack.shape[1:])) * dtype.itemsize
            for i in range(stack.shape[0]):
                offset = stack.dataoffset + i * frame_bytes
                yield TiffPage(path, i, tuple(stack.shape[1:]), dtype, offset)
            return
    for i, page in enumerate(file.pages):
        whole = page.aspage()
        if whole.dtype is None:
            raise ValueError(f"page {i} has no pixels of a known type")
        start = whole.dataoffsets[0] if whole.is_final and whole.dataoffsets else None
        yield TiffPage(path, i, tuple(whole.shape), whole.dtype.newbyteorder(byteorder), start)


def decode_page(image: TiffPage) -> NDArray[Any]:
    """Return a frame that must be decoded as a whole."""
    try:
        frame: NDArray[Any] = tifffile.imread(image.path, key=image.page, maxworkers=1)
    except (tifffile.TiffFileError, OSError, ValueError, *_CODEC_ERRORS) as error:
        hint = ": install imagecodecs" if "imagecodecs" in str(error) else ""
        raise SourceError(
            f"{image.path}: page {image.page} cannot be decoded ({error}){hint}"
        ) from None
    return frame
