"""Frames in TIFFs: a folder with one TIFF for each frame, or one file with many pages.

The chain of pages is checked to its end: each page contains the offset of the next one (TIFF 6.0,
"Image File Directory"). tifffile reads a truncated stack as one of fewer pages, and logs at most
one line. Parts that decompress to more than the declared size are rejected before memory is
allocated.
"""

from __future__ import annotations

import logging
import lzma
import math
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ...system import threads
from ...system.threads import parallel_for, parallel_for_box
from ..check_arrays import check_dtype
from ..files import (
    TIFF_SUFFIXES,
    cause_of,
    check_readable,
    library_errors,
    raise_if_of_system,
    raised_by_library,
)
from ..frames.frames import FrameIndices, Frames, IndexRange, PlainFrames


def count_pages(path: Path) -> int:
    """Number of pages of a TIFF, by its chain.

    Raises
    ------
    SourceError
        If the chain leaves the file or has a loop, or the file is not a TIFF.
    """
    with path.open("rb") as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        head = os.pread(fd, 16, 0)
        order = {b"II": "little", b"MM": "big"}.get(head[:2])
        version = int.from_bytes(head[2:4], order) if order else 0  # type: ignore[arg-type]
        if version not in (42, 43):
            raise SourceError(f"{path}: is not a TIFF, in spite of its name")
        # Bytes of the number of tags, of a tag, and of an offset.
        n_count, n_tag, n_offset = (8, 20, 8) if version == 43 else (2, 12, 4)

        def number(at: int, n_bytes: int) -> int:
            value = os.pread(fd, n_bytes, at) if at < size else b""
            if len(value) < n_bytes:
                raise SourceError(
                    f"{path}: is cut off or damaged after {len(seen)} pages: page {len(seen)} "
                    f"should be at byte {at} of {size}. Copy it again"
                )
            return int.from_bytes(value, order)  # type: ignore[arg-type]

        seen: set[int] = set()
        offset = number(8 if version == 43 else 4, n_offset)
        while offset:
            if offset in seen:
                raise SourceError(
                    f"{path}: is damaged: page {len(seen) - 1} is followed by an earlier one. Copy "
                    "it again"
                )
            n_tags = number(offset, n_count)
            following = number(offset + n_count + n_tag * n_tags, n_offset)
            seen.add(offset)
            offset = following
    return len(seen)


_DEFLATE, _LZMA, _PACKBITS = (8, 32946), 34925, 32773
"""Numbers of compressions in a TIFF."""
_MOST_FOLD = {**dict.fromkeys(_DEFLATE, 1032), _PACKBITS: 64}
"""Largest ratio of decompression: 258 bytes from two bits of deflate, 128 from two bytes of
PackBits."""
_SPARE_BYTES = 2**25
"""Excess memory of a part that is not checked, because checking every part takes longer."""


def check_stored(name: str, page: tifffile.TiffPage) -> None:
    """Check that the bytes of a page can decompress to its number of pixels.

    Raises
    ------
    SourceError
        If not, before memory for the pixels is allocated.
    """
    fold = _MOST_FOLD.get(int(page.compression))
    pixel_bytes = math.prod(page.shape) * np.dtype(page.dtype).itemsize
    if fold is not None and pixel_bytes > fold * (sum(page.databytecounts) + 64):
        raise SourceError(
            f"{name} has {sum(page.databytecounts)} bytes, which cannot be {pixel_bytes} bytes of "
            "pixels. It is damaged, so copy it again"
        )


def check_inflated(name: str, file: tifffile.TiffFile, page: tifffile.TiffPage) -> None:
    """Check that no part of a page decompresses to more than its pixels.

    The package imagecodecs has this limit. Its replacement in tifffile does not, so parts that
    could take much more memory are first decompressed here up to the size of their pixels.

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
                f"{name}: the part at byte {offset} has more than {most} bytes of pixels. It is "
                "damaged, so copy it again"
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
    """Stored dtype, including byte order."""
    offset: int | None
    """First byte of its pixels if they are uncompressed and contiguous, else None."""


def read_pages(path: Path) -> list[TiffPage]:
    """List the frames of a TIFF.

    Raises
    ------
    SourceError
        If it is not a TIFF, is damaged or is truncated.
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
            raise SourceError(f"{path}: has no pages. It is damaged, so copy it again")
        if n_found != n_pages:
            raise SourceError(
                f"{path}: has {n_pages} pages, and {n_found} can be read. It is damaged, so copy "
                "it again"
            )
    return images


@contextmanager
def _without_log() -> Iterator[None]:
    """Suppress log messages of tifffile about a damaged file, which is reported as an error."""
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
        # ImageJ writes stacks of more than 4 GiB as one page followed by the frames.
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
                f"{path}: page {i} is damaged: its sizes are not numbers. Copy it again"
            )
        check_stored(f"{path}: page {i}", whole)
        is_plain = whole.is_final and len(whole.dataoffsets) > 0
        start = whole.dataoffsets[0] if is_plain else None
        stored = whole.databytecounts
        if is_plain:
            stored = (math.prod(whole.shape) * whole.dtype.itemsize,)
        # A file may have fewer sizes than parts; decoding such a page is an error.
        parts = zip(whole.dataoffsets, stored, strict=False)
        if any(offset + n_bytes > size for offset, n_bytes in parts):
            raise SourceError(f"{path}: is cut off within its page {i}: copy it again")
        yield TiffPage(path, i, tuple(whole.shape), whole.dtype.newbyteorder(byteorder), start)


def decode_page(image: TiffPage) -> NDArray[Any]:
    """Decode a whole frame."""
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
            f"{image.path}: page {image.page} has {frame.shape} pixels instead of {image.shape}. "
            "It is damaged, so copy it again"
        )
    return frame


_HEAD_BYTES = 2**16
"""Largest number of bytes before and after the pixels that are compared with another file.

Tags take some hundred bytes. 64 KiB allow long descriptions, and are less than the pixels, so
comparing is faster than reading.
"""


class TiffFrames(Frames):
    """Frames in TIFFs.

    Parameters
    ----------
    name : str
        Name of the stack in messages.
    images : list of TiffPage
        The frames in order.
    """

    def __init__(self, name: str, images: list[TiffPage]) -> None:
        first = images[0]
        if len(first.shape) != 2:
            raise SourceError(
                f"{first.path}: has shape {first.shape}: a frame has rows and columns of grey "
                "values; convert it to grey"
            )
        for image in images:
            if image.shape != first.shape or image.dtype != first.dtype:
                raise SourceError(
                    f"{image.path}: is {_size(image)}, other than {first.path.name}, "
                    f"{_size(first)}. All frames of a scan have one size and type, so move other "
                    "files elsewhere"
                )
        self.name = name
        self._images = images
        dtype = check_dtype(str(first.path), first.dtype)
        self.spec = ArraySpec((len(images), *first.shape), dtype)

    @property
    def files(self) -> Iterable[Path]:
        """Files that the frames are read from."""
        return dict.fromkeys(image.path for image in self._images)

    @property
    def reads_rows(self) -> bool:
        """True unless a page is compressed or in parts, and is decoded as a whole."""
        return all(image.offset is not None for image in self._images)

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part into `out` with several threads; see `Frames.read`."""
        wanted = [self._images[i] for i in frames]

        def part(some: IndexRange, of_rows: IndexRange, target: NDArray[Any]) -> None:
            for path, images in groupby(wanted[slice(*some)], lambda image: image.path):
                together = list(images)
                _read(path, together, of_rows, columns, target[: len(together)])
                target = target[len(together) :]

        packed = any(image.offset is None for image in wanted)
        if packed:  # rows of a frame that is decoded as a whole are not split over threads

            def decode(i: int) -> None:
                part((i, i + 1), rows, out[i : i + 1])

            parallel_for(len(wanted), decode, threads.N_DECODERS)
        else:
            parallel_for_box((0, len(wanted)), rows, out, part)


def open_tiffs(path: Path) -> TiffFrames:
    """Open a folder of TIFFs, in natural order of their names, or one TIFF.

    Raises
    ------
    SourceError
        If there are no TIFFs, they differ in size or dtype, or the order of names is ambiguous.
    """
    if check_readable(path) == "file":
        return TiffFrames(str(path), read_pages(path))
    files = sorted(
        (
            p
            for p in path.iterdir()
            if p.suffix.lower() in TIFF_SUFFIXES and not p.name.startswith(".")
        ),
        key=lambda p: _natural(p.name),
    )
    if not files:
        names = sorted(p.name for p in path.iterdir())
        holds = f"it holds {', '.join(names[:3])}" if names else "it is empty"
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise SourceError(
            f"{path}: is a folder without TIFFs, {holds}{more}: give a folder of "
            f"{' or '.join(TIFF_SUFFIXES)} files, or a file"
        )
    _check_order(path, files)
    _warn_of_series(path, files)
    _warn_of_gaps(path, files)
    images: list[TiffPage] = []
    matches: list[bool] = []
    for i, file in enumerate(files):
        if i and matches[i]:
            images.append(replace(images[0], path=file))
            continue
        pages = read_pages(file)
        if len(pages) != 1:
            raise SourceError(
                f"{file}: has {len(pages)} pages: a folder has one TIFF for each frame. Give a "
                "file of many pages by itself"
            )
        images.append(pages[0])
        if i == 0:
            matches = _match_first(pages[0], files)
    return TiffFrames(str(path), images)


def _match_first(image: TiffPage, files: list[Path]) -> list[bool]:
    """True for each file that differs from that of `image` only in the pixels.

    Such a file is not parsed. Several threads compare files, in a tenth of the time of parsing.
    """
    matches = [False] * len(files)
    n_bytes = int(np.prod(image.shape)) * image.dtype.itemsize
    if image.offset is None or image.offset > _HEAD_BYTES:
        return matches
    try:
        head, tail, size = _around(image.path, image.offset, n_bytes)
    except OSError:
        return matches
    if size > n_bytes + _HEAD_BYTES:
        return matches

    def compare(i: int) -> None:
        try:
            matches[i] = _around(files[i], image.offset or 0, n_bytes) == (head, tail, size)
        except OSError:
            return  # parsing the file raises the error

    parallel_for(len(files), compare)
    return matches


def _around(path: Path, offset: int, n_bytes: int) -> tuple[bytes, bytes, int]:
    """Bytes before and after the pixels in a file, and its size."""
    if not path.is_file():  # opening a pipe would block
        raise FileNotFoundError(path)
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        head, tail = os.pread(fd, offset, 0), os.pread(fd, _HEAD_BYTES, offset + n_bytes)
        return head, tail, os.fstat(fd).st_size


_NUMBER = re.compile(r"((?:(?<![^_= (])[+-])?[0-9]+(?:\.[0-9]+)?)")
"""A number, possibly a decimal, with a sign if a separator is before the sign."""


def _natural(name: str) -> list[tuple[int, str]]:
    """Key that sorts ``p2.tif`` before ``p10.tif``."""
    return [(int(t), "") if t.isdigit() else (-1, t) for t in re.split(r"([0-9]+)", name)]


def _check_order(folder: Path, files: list[Path]) -> None:
    """Reject names whose order changes if their numbers are decimals or have signs."""
    parts = (_NUMBER.split(file.name) for file in files)
    keys = [[(float(t), "") if i % 2 else (-math.inf, t) for i, t in enumerate(p)] for p in parts]
    by_value = sorted(range(len(files)), key=keys.__getitem__)
    if any(keys[one] == keys[other] for one, other in pairwise(by_value)):
        return  # such as 1.1, 1.9 and 1.10, which are not decimals
    for one, other in enumerate(by_value):
        if one != other:
            raise SourceError(
                f"{folder}: {files[one].name} is before {files[other].name} if their numbers are "
                "whole, and after it if they are decimals or negative. Renumber the files, such as "
                "0000.tif"
            )


def _warn_of_series(folder: Path, files: list[Path]) -> None:
    """Warn of names that differ in more than their numbers, such as those of flats and darks."""
    series = Counter(re.sub(r"[0-9]+", "*", file.name) for file in files)
    if len(series) > 1:
        shown = ", ".join(f"{name} ({count})" for name, count in series.most_common(3))
        warnings.warn(
            f"{folder}: its files have {len(series)} kinds of names ({shown}), and all are read as "
            "frames of one stack: move flats and darks to folders of their own, and give these in "
            "the pipeline's loader (standard_tomo)",
            stacklevel=2,
        )


def _warn_of_gaps(folder: Path, files: list[Path]) -> None:
    """Warn of missing numbers if one number in the names counts the files."""
    numbers = [list(map(int, re.findall(r"[0-9]+", file.name))) for file in files]
    if len({len(each) for each in numbers}) > 1:
        return  # several kinds of names
    varying = [each for each in zip(*numbers, strict=True) if len(set(each)) > 1]
    if len(varying) != 1:  # no counter, or several numbers as in decimals
        return
    counted = sorted(set(varying[0]))
    step = min(b - a for a, b in pairwise(counted))
    n_lost = sum((b - a - 1) // step for a, b in pairwise(counted))
    if 0 < n_lost < len(files):  # larger gaps are not of a counter, such as times of day
        lost = [k for a, b in pairwise(counted) for k in range(a + step, b, step)]
        shown = ", ".join(map(str, lost[:3])) + (", ..." if n_lost > 3 else "")
        warnings.warn(
            f"{folder}: files are missing among {files[0].name} to {files[-1].name}, by their "
            f"numbers {n_lost} ({shown}): the angles of those that follow are right only if "
            "the scan has its own",
            stacklevel=2,
        )


def _read(
    path: Path, images: list[TiffPage], rows: IndexRange, columns: IndexRange, out: NDArray[Any]
) -> None:
    """Read a box of frames in one file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise_if_of_system(str(path), error)
        raise SourceError(f"{path}: cannot be read any more ({error.strerror})") from None
    try:
        for i, image in enumerate(images):
            if image.offset is None:
                out[i] = decode_page(image)[slice(*rows), slice(*columns)]
            else:
                offsets = np.array([image.offset], np.int64)
                frame = PlainFrames(offsets, (image.shape[0], image.shape[1]), image.dtype)
                frame.read_part(fd, np.zeros(1, np.int64), rows, columns, out[i : i + 1])
    except (OSError, EOFError) as error:
        raise_if_of_system(str(path), error)
        raise SourceError(f"{path}: cannot be read any more ({error})") from None
    finally:
        os.close(fd)


def _size(image: TiffPage) -> str:
    return f"{'x'.join(map(str, image.shape))} {image.dtype}"
