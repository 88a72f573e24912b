"""The pages of TIFFs: shapes, dtypes, offsets of uncompressed pixels, and decoding.

The chain of pages is followed to its end: each page says where the next one begins (TIFF 6.0,
"Image File Directory"), and tifffile reads a stack that is cut off as one of fewer pages, with a
line in its log at most. Parts that stand for more than the file says are found before memory is
taken for them.
"""

from __future__ import annotations

import logging
import lzma
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from ...errors import SourceError
from ..library_errors import cause_of, library_errors, raise_if_of_system, raised_by_library
from ..paths import check_readable


def count_pages(path: Path) -> int:
    """Number of pages of a TIFF, by its chain.

    Raises
    ------
    SourceError
        If the chain leaves the file or comes back to a page, or it is no TIFF.
    """
    with path.open("rb") as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        head = os.pread(fd, 16, 0)
        order = {b"II": "little", b"MM": "big"}.get(head[:2])
        version = int.from_bytes(head[2:4], order) if order else 0  # type: ignore[arg-type]
        if version not in (42, 43):
            raise SourceError(f"{path}: is not a TIFF, whatever its name says")
        # The number of tags, a tag, and an offset take so many bytes.
        n_count, n_tag, n_offset = (8, 20, 8) if version == 43 else (2, 12, 4)

        def number(at: int, n_bytes: int) -> int:
            held = os.pread(fd, n_bytes, at) if at < size else b""
            if len(held) < n_bytes:
                raise SourceError(
                    f"{path}: is cut off or damaged after {len(seen)} pages: page {len(seen)} is "
                    f"to be at byte {at}, and the file has {size}: copy it again"
                )
            return int.from_bytes(held, order)  # type: ignore[arg-type]

        seen: set[int] = set()
        offset = number(8 if version == 43 else 4, n_offset)
        while offset:
            if offset in seen:
                raise SourceError(
                    f"{path}: is damaged: after page {len(seen) - 1} comes one before it: copy it "
                    "again"
                )
            n_tags = number(offset, n_count)
            following = number(offset + n_count + n_tag * n_tags, n_offset)
            seen.add(offset)
            offset = following
    return len(seen)


_DEFLATE, _LZMA, _PACKBITS = (8, 32946), 34925, 32773
"""Numbers of these compressions in a TIFF."""
_MOST_FOLD = {**dict.fromkeys(_DEFLATE, 1032), _PACKBITS: 64}
"""Most bytes that one byte stands for: 258 in two bits of deflate; 128 in two bytes of PackBits."""
_SPARE_BYTES = 2**25
"""What a part may take beyond its pixels unseen: less than a look at every part would cost."""


def check_stored(name: str, page: tifffile.TiffPage) -> None:
    """Check that the bytes of a page can be as many pixels as it says.

    Raises
    ------
    SourceError
        If not: memory for them would be taken in vain.
    """
    fold = _MOST_FOLD.get(int(page.compression))
    pixel_bytes = math.prod(page.shape) * np.dtype(page.dtype).itemsize
    if fold is not None and pixel_bytes > fold * (sum(page.databytecounts) + 64):
        raise SourceError(
            f"{name} has {sum(page.databytecounts)} bytes, which cannot be {pixel_bytes} bytes of "
            "pixels: it is damaged; copy it again"
        )


def check_inflated(name: str, file: tifffile.TiffFile, page: tifffile.TiffPage) -> None:
    """Check that no part of a page decompresses to more than its pixels.

    The package imagecodecs stops there by itself. What tifffile has in its place does not, so parts
    that could take much more are decompressed here first, as far as their pixels go.

    Raises
    ------
    SourceError
        If one does.
    zlib.error, lzma.LZMAError
        If one cannot be decompressed.
    """
    compression = int(page.compression)
    if compression not in (*_DEFLATE, _LZMA) or find_spec("imagecodecs") is not None:
        return
    most = math.prod(page.chunks) * np.dtype(page.dtype).itemsize
    for offset, n_bytes in zip(page.dataoffsets, page.databytecounts, strict=False):
        if _MOST_FOLD.get(compression, math.inf) * n_bytes <= most + _SPARE_BYTES:
            continue
        file.filehandle.seek(offset)
        data = file.filehandle.read(n_bytes)
        inflater = lzma.LZMADecompressor() if compression == _LZMA else zlib.decompressobj()
        if len(inflater.decompress(data, most + 1)) > most:
            raise SourceError(
                f"{name}: the part at byte {offset} has more than {most} bytes of pixels: it is "
                "damaged; copy it again"
            )


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
    with _without_log():
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
def _without_log() -> Iterator[None]:
    """Drop what tifffile logs of a damaged file: the error that follows says it."""
    logger = logging.getLogger("tifffile")

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


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
        raise SourceError(
            f"{image.path}: page {image.page} cannot be decoded ({cause_of(error)})"
        ) from None
    if frame.shape != image.shape:
        raise SourceError(
            f"{image.path}: page {image.page} is {frame.shape} pixels and not {image.shape}, as "
            "the file says: it is damaged; copy it again"
        )
    return frame
