"""Frames of a data set that were never written, which HDF5 reads as zeros.

A data set is larger than its data if the acquisition was aborted or still runs, if files of a
virtual data set are missing or have fewer frames, or if a raw file is too short. A frame counts as
written if all of its pixels are stored in a file. No pixels are read.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..frames.frames import ABORTED, UNWRITTEN, FramesWritten
from .chunks import ChunkIndex
from .objects import look_up, open_file

_MAX_DEPTH = 16
"""Largest depth of nested virtual data sets. Files of detector modules, joined by scan and by
experiment, have three levels."""
_MOST_UNWRITTEN = 2**20
"""Largest number of frames of which most may be unwritten. More are an error before an array of
their number is allocated, because only the file's header has that number."""
_MISSING = -(2**62)
"""Value for the pixels of a frame that are missing in one file, so that the sum over all files is
negative."""


def frames_written(
    data: h5py.Dataset, name: str, above: tuple[tuple[str, str], ...] = ()
) -> FramesWritten:
    """Find which frames of an open data set were written.

    Parameters
    ----------
    data : h5py.Dataset
        Data set with at least one dim; frames are along the first.
    name : str
        Name in messages.
    above : tuple of (str, str)
        File and path of each virtual data set that contains it.

    Raises
    ------
    SourceError
        If a virtual data set contains itself, which crashes the HDF5 library, or a file is damaged,
        or more than a million frames are missing.
    """
    here = (os.path.realpath(data.file.filename), data.name or "")
    if here in above or len(above) >= _MAX_DEPTH:
        raise SourceError(
            f"{name}: is a virtual data set that contains itself ({data.name} in "
            f"{data.file.filename}), or has more than {_MAX_DEPTH} levels of files. Write it again"
        )
    if data.is_virtual:
        return _virtual(data, name, (*above, here))
    creation, n_frames = data.id.get_create_plist(), data.shape[0]
    if creation.get_external_count():
        return _external(data, creation)
    if creation.get_layout() == h5py.h5d.CHUNKED:
        depth, n_stored = data.chunks[0], data.id.get_num_chunks()
        n_chunks = prod(-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True))
        if n_stored < n_chunks or creation.get_nfilters():
            _check_number(n_stored * depth, n_frames, name)
            lost = ChunkIndex.of(data, name).offsets == UNWRITTEN
            lost = lost.reshape(len(lost), -1).any(axis=1)
            return FramesWritten(np.repeat(lost, depth)[:n_frames])
    elif creation.get_layout() == h5py.h5d.CONTIGUOUS and data.id.get_offset() is None:
        _check_number(0, n_frames, name)
        return FramesWritten(np.ones(n_frames, bool))
    return FramesWritten(np.zeros(n_frames, bool))


def _check_number(n_written: int, n_frames: int, name: str) -> None:
    """Check that arrays of this length may be allocated."""
    if n_frames > _MOST_UNWRITTEN and 2 * n_written < n_frames:
        raise SourceError(f"{name}: at most {n_written} of its {n_frames} frames were written")


def _virtual(data: h5py.Dataset, name: str, above: tuple[tuple[str, str], ...]) -> FramesWritten:
    """Find the written frames of a virtual data set: those with data in all of its files.

    Gaps between the modules of a detector are in every frame. A frame with larger gaps is missing.
    """
    mappings = data.virtual_sources()
    if not any(_virtual_file(each.file_name, Path(data.file.filename)) for each in mappings):
        _check_number(0, data.shape[0], name)
    n_pixels = np.zeros(data.shape[0], np.int64)
    written = FramesWritten(n_pixels == 0)
    for mapping in mappings:
        spans = _spans(mapping.vspace)
        lengths = [
            min(n_blocks * block, n)
            for (_, _, n_blocks, block), n in zip(spans, data.shape, strict=True)
        ]
        frames = _indices(spans[0], len(n_pixels))
        frames = frames[frames < len(n_pixels)]
        there = _source_frames(mapping, data, lengths, len(frames), written, name, above)
        n_pixels[frames[there]] += prod(lengths[1:])
        n_pixels[frames[~there]] = _MISSING
    written.missing = n_pixels < max(int(n_pixels.max(initial=0)), 1)
    return written


def _source_frames(
    mapping: Any,
    data: h5py.Dataset,
    lengths: list[int],
    n_frames: int,
    written: FramesWritten,
    name: str,
    above: tuple[tuple[str, str], ...],
) -> NDArray[np.bool_]:
    """Find which of the first mapped frames were written in the source: True for each that was.

    The file of the source and the reason for missing frames are added to `written`. HDF5 (2.0.0)
    does not check that the source has the mapped size, and reads pixels from other places.
    """
    nothing, here = np.zeros(n_frames, bool), Path(data.file.filename)
    file_name, where = (each.replace("%%", "%") for each in (mapping.file_name, mapping.dset_name))
    if "%b" in (mapping.file_name + mapping.dset_name).replace("%%", ""):
        raise SourceError(
            f"{name}: its files are numbered by a pattern ({mapping.file_name}), so their number "
            "is unknown. Write it again with the names of the files"
        )
    path = _virtual_file(file_name, here)
    if path is None:
        written.why = written.why or _absent(here.parent / file_name)
        return nothing
    with ExitStack() as opened:
        file = data.file
        if path != here:
            written.files.add(path)
            file = opened.enter_context(open_file(path))
        source = look_up(file, where)
        if not isinstance(source, h5py.Dataset) or not source.shape:
            written.why = written.why or _absent(f"{path}:{where}")
            return nothing
        spans, held = _spans(mapping.src_space), source.shape
        # HDF5 does not store the shape of a source of which all is mapped.
        due = tuple(map(_end, spans)) or tuple(lengths)
        fits = len(held) == len(due) and (
            all(map(int.__ge__, held[1:], due[1:])) if spans else held[1:] == due[1:]
        )
        if not fits and (spans or _longer(held) != _longer(due)):
            shapes = ["x".join(map(str, shape)) for shape in (held, due)]
            raise SourceError(
                f"{name}: {path}:{where} has the shape {shapes[0]}, and {shapes[1]} is mapped. The "
                "mapping belongs to other files, so write it again"
            )
        inner = frames_written(source, name, above)
    written.files |= inner.files
    written.why = written.why or inner.why
    if not fits or len(held) != data.ndim:  # frames are not along its first dim
        is_whole = not inner.missing.any() and (not fits or held[0] >= due[0])
        return ~nothing if is_whole else nothing
    frames = _indices(spans[0], n_frames) if spans else np.arange(n_frames)
    there: NDArray[np.bool_] = frames < held[0]
    if held[0] < due[0]:
        written.why = written.why or (
            f"too few are in {path}:{where} ({held[0]} of {due[0]} frames): {ABORTED}"
        )
    there &= ~inner.missing[np.minimum(frames, held[0] - 1)]
    return there


def _absent(place: Path | str) -> str:
    return f"its data are in {place}, which is missing. Copy it next to the file"


def _longer(shape: tuple[int, ...]) -> list[int]:
    """Lengths of the dims that are longer than one."""
    return [n for n in shape if n != 1]


def _external(data: h5py.Dataset, creation: h5py.h5p.PropDCID) -> FramesWritten:
    """Check that the raw files of a data set contain all frames.

    The HDF5 library resolves relative paths from the current folder.
    """
    folder = Path(data.file.filename).parent
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", str(folder))
    left_bytes = prod(data.shape) * data.dtype.itemsize
    written = FramesWritten(np.zeros(data.shape[0], bool))
    for i in range(creation.get_external_count()):
        name, offset, n_bytes = creation.get_external(i)
        path = Path(prefix) / os.fsdecode(name)
        wanted_bytes = min(n_bytes, left_bytes)
        if not path.is_file() or path.stat().st_size < offset + wanted_bytes:
            what = "is too short" if path.is_file() else "is missing or not a file"
            raise SourceError(
                f"{data.file.filename}: its data are in {path}, which {what}. Copy it again"
            )
        written.files.add(path)
        left_bytes -= wanted_bytes
    if left_bytes:
        raise SourceError(
            f"{data.file.filename}: some of its raw files are not listed. Write it again"
        )
    return written


_Span = tuple[int, int, int, int]
"""Start, stride, number of blocks and length of a block along a dim."""
_UNLIMITED = 2**64 - 1
"""An unlimited number of blocks, or an unlimited length (H5S_UNLIMITED)."""


def _end(span: _Span) -> int:
    """End of a selection along a dim; 0 if it is unlimited."""
    start, stride, n_blocks, block = span
    if max(n_blocks, block) >= _UNLIMITED:
        return 0
    return start + stride * (n_blocks - 1) + block


def _spans(space: h5py.h5s.SpaceID) -> list[_Span]:
    """Selection along each dim; the bounding box of an irregular selection."""
    kind = space.get_select_type()
    if kind == h5py.h5s.SEL_ALL:
        return [(0, 1, 1, int(n)) for n in space.shape]
    if kind == h5py.h5s.SEL_HYPERSLABS and space.is_regular_hyperslab():
        start, stride, n_blocks, block = space.get_regular_hyperslab()
        return list(zip(start, stride, n_blocks, block, strict=True))
    first, last = space.get_select_bounds()
    return [(int(a), 1, 1, int(b) - int(a) + 1) for a, b in zip(first, last, strict=True)]


def _indices(span: _Span, most: int) -> NDArray[np.int64]:
    """Indices of a selection along a dim, the first `most`."""
    start, stride, n_blocks, block = (min(int(n), 2**62) for n in span)
    block = max(1, min(block, most))
    n_blocks = min(n_blocks, -(-most // block))
    starts = start + stride * np.arange(n_blocks, dtype=np.int64)
    return (starts[:, np.newaxis] + np.arange(block, dtype=np.int64)).ravel()[:most]


def _virtual_file(name: str, file: Path) -> Path | None:
    """Find the file of a virtual data set's source as the HDF5 library does; None if it is missing.

    The library searches in the folders of a prefix, the folder of the file, the same without links,
    and the current folder (``H5Pset_virtual_prefix``). For an absolute name that does not exist,
    it searches for the last part.
    """
    if name == ".":
        return file
    prefixes = os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", str(file.parent))
    folders = [Path(each) for each in prefixes.split(":") if each]
    folders += [file.parent, Path(os.path.realpath(file)).parent, Path()]
    tried = [Path(name)] if os.path.isabs(name) else []
    base = os.path.basename(name) if os.path.isabs(name) else name
    tried += [folder / base for folder in folders]
    return next((path for path in tried if path.is_file()), None)
