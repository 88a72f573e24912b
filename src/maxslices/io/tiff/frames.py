"""Frames in TIFFs: a folder with one TIFF a frame, or one file of many pages."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ...system import threads
from ...system.threads import parallel_for, parallel_for_box
from ..check_arrays import check_dtype
from ..frames.frames import FrameIndices, Frames, IndexRange, PlainFrames
from ..library_errors import raise_if_of_system
from ..paths import TIFF_SUFFIXES, check_readable
from .pages import TiffPage, decode_page, read_pages

_HEAD_BYTES = 2**16
"""Most bytes before the pixels, and after them, that are compared with those of another file.

Tags take some hundred bytes; 64 KiB leave room for long descriptions, and are less than a page of
pixels, so that comparing costs less than reading.
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
                    f"{_size(first)}: the frames of a scan are of one size and type; move what "
                    "does not belong to it elsewhere"
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
        """True unless a page is compressed or in parts: it is decoded as a whole."""
        return all(image.offset is not None for image in self._images)

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part into `out`, in several threads; see `Frames.read`."""
        wanted = [self._images[i] for i in frames]

        def part(some: IndexRange, of_rows: IndexRange, target: NDArray[Any]) -> None:
            for path, images in groupby(wanted[slice(*some)], lambda image: image.path):
                together = list(images)
                _read(path, together, of_rows, columns, target[: len(together)])
                target = target[len(together) :]

        packed = any(image.offset is None for image in wanted)
        if packed:  # a frame is decoded as a whole, so its rows are not split over threads

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
        If there are none, they differ in size or dtype, or their names give two orders.
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
                f"{file}: has {len(pages)} pages: a folder has one TIFF a frame; give a file of "
                "many pages by itself"
            )
        images.append(pages[0])
        if i == 0:
            matches = _match_first(pages[0], files)
    return TiffFrames(str(path), images)


def _match_first(image: TiffPage, files: list[Path]) -> list[bool]:
    """True for each file that equals that of `image` in all but the pixels.

    Such a file need not be parsed. Comparing takes a tenth of the time of parsing, and is done by
    several threads.
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
    if not path.is_file():  # a pipe would wait for its other end
        raise FileNotFoundError(path)
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        head, tail = os.pread(fd, offset, 0), os.pread(fd, _HEAD_BYTES, offset + n_bytes)
        return head, tail, os.fstat(fd).st_size


_NUMBER = re.compile(r"((?:(?<![^_= (])[+-])?[0-9]+(?:\.[0-9]+)?)")
"""A number that may be a decimal, and has a sign where something separates that from the name."""


def _natural(name: str) -> list[tuple[int, str]]:
    """Key that sorts ``p2.tif`` before ``p10.tif``."""
    return [(int(t), "") if t.isdigit() else (-1, t) for t in re.split(r"([0-9]+)", name)]


def _check_order(folder: Path, files: list[Path]) -> None:
    """Refuse names that are in another order if their numbers are decimals or have signs."""
    parts = (_NUMBER.split(file.name) for file in files)
    keys = [[(float(t), "") if i % 2 else (-math.inf, t) for i, t in enumerate(p)] for p in parts]
    by_value = sorted(range(len(files)), key=keys.__getitem__)
    if any(keys[one] == keys[other] for one, other in pairwise(by_value)):
        return  # as of 1.1, 1.9 and 1.10, which are no decimals
    for one, other in enumerate(by_value):
        if one != other:
            raise SourceError(
                f"{folder}: {files[one].name} is before {files[other].name} if their numbers are "
                "whole, and after it if they are decimals or negative: number the files anew, such "
                "as 0000.tif"
            )


def _warn_of_series(folder: Path, files: list[Path]) -> None:
    """Warn of names that differ in more than their numbers, as those of flats and darks do."""
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
    """Warn of numbers that are missing where one number counts the files."""
    numbers = [list(map(int, re.findall(r"[0-9]+", file.name))) for file in files]
    if len({len(each) for each in numbers}) > 1:
        return  # of several kinds of names
    varying = [each for each in zip(*numbers, strict=True) if len(set(each)) > 1]
    if len(varying) != 1:  # no number, or several, as of decimals
        return
    counted = sorted(set(varying[0]))
    step = min(b - a for a, b in pairwise(counted))
    n_lost = sum((b - a - 1) // step for a, b in pairwise(counted))
    if 0 < n_lost < len(files):  # more are no gaps, as between times of day
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
    """Read a box of frames that are in one file."""
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
