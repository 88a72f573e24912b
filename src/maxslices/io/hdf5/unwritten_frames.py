"""Frames of a data set that were never written, which HDF5 reads as zeros.

An acquisition that was aborted, or that still runs, leaves a data set larger than its data. So does
a virtual data set whose files are missing or hold fewer frames, and a raw file that is too short.
Nothing here reads pixels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..frames.frames import FramesWritten
from ..frames.plain_frames import UNWRITTEN
from ..library_errors import library_errors
from .chunks import ChunkIndex
from .objects import look_up, open_file

_MAX_DEPTH = 16
"""Most virtual data sets one behind the other: files of detector modules, joined by scan and by
experiment, are three."""


def frames_written(data: h5py.Dataset, name: str, *, allow_missing: bool = False) -> FramesWritten:
    """Find which frames of an open data set were written.

    Parameters
    ----------
    data : h5py.Dataset
        Of one dim or more; frames are along the first.
    name : str
        Its name in messages.
    allow_missing : bool
        Whether more than half of the frames may be missing. Otherwise that is an error at once,
        before arrays are made by a number of frames that nothing but the file's header says.

    Raises
    ------
    SourceError
        If more than half of the frames are missing; if a virtual data set is made of itself, which
        the HDF5 library does not survive, or of a file that is damaged.
    """
    with library_errors(name):
        return _Search(name, allow_missing).written(data, ())


@dataclass(frozen=True, slots=True)
class _Search:
    """Search for the frames that were written, through the files of virtual data sets."""

    name: str
    """Name of the data set, for messages."""
    allow_missing: bool
    """Whether more than half of the frames may be missing."""

    def written(self, data: h5py.Dataset, above: tuple[tuple[str, str], ...]) -> FramesWritten:
        """Frames of a data set that were written; `above` are those that it is a part of."""
        here = (os.path.realpath(data.file.filename), data.name or "")
        if here in above:
            raise SourceError(
                f"{self.name}: is a virtual data set that is made of itself ({data.name} in "
                f"{data.file.filename}): write it again"
            )
        if len(above) >= _MAX_DEPTH:
            raise SourceError(f"{self.name}: is made of more than {_MAX_DEPTH} levels of files")
        if data.is_virtual:
            return self._virtual(data, (*above, here))
        creation = data.id.get_create_plist()
        if creation.get_external_count():
            return _external(data, creation)
        if creation.get_layout() == h5py.h5d.CHUNKED:
            return FramesWritten(self._missing_chunks(data))
        if creation.get_layout() == h5py.h5d.CONTIGUOUS and data.id.get_offset() is None:
            self._check_some(0, data.shape[0])
            return FramesWritten(np.ones(data.shape[0], bool))
        return FramesWritten()

    def _check_some(self, n_written: int, n_frames: int) -> None:
        """Check that at least half of the frames may have been written."""
        if 2 * n_written < n_frames and not self.allow_missing:
            most = f"at most {n_written}" if n_written else "none"
            raise SourceError(
                f"{self.name}: {most} of its {n_frames} frames were written: the acquisition was "
                f"aborted, or still runs; allow it with "
                "--allow-missing-frames"
            )

    def _missing_chunks(self, data: h5py.Dataset) -> NDArray[np.bool_] | None:
        """Frames that lie, wholly or in part, in chunks that were never written."""
        n_frames, depth = data.shape[0], data.chunks[0]
        grid = [-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True)]
        n_stored = data.id.get_num_chunks()
        if n_stored >= prod(grid) and not data.id.get_create_plist().get_nfilters():
            return None
        self._check_some(n_stored * depth, n_frames)
        lost = ChunkIndex.of(data, self.name).offsets == UNWRITTEN
        lost = lost.reshape(len(lost), -1).any(axis=1)
        return np.repeat(lost, depth)[:n_frames] if lost.any() else None

    def _virtual(self, data: h5py.Dataset, above: tuple[tuple[str, str], ...]) -> FramesWritten:
        """Frames of a virtual data set of which all files hold their part.

        Gaps between the modules of a detector are in every frame. A frame with more lacks data.
        """
        n_frames = data.shape[0]
        held: NDArray[np.int64] | None = None
        found = FramesWritten()
        for part in _parts(data):
            if held is None:  # not before a part is there
                held = np.zeros(n_frames, np.int64)
            there = self._part_written(part, data, above, found)[: len(part.frames)]
            held[part.frames[there]] += part.frame_size
            held[part.frames[~there]] = -(2**62)  # whatever other files hold
        if held is None:
            self._check_some(0, n_frames)
            held = np.zeros(n_frames, np.int64)
        missing = held < max(int(held.max(initial=0)), 1)
        found.missing = missing if missing.any() else None
        return found

    def _part_written(
        self,
        part: _Part,
        data: h5py.Dataset,
        above: tuple[tuple[str, str], ...],
        found: FramesWritten,
    ) -> NDArray[np.bool_]:
        """True for each frame of a part that its file holds; notes the file in `found`."""
        nothing = np.zeros(len(part.frames), bool)
        here = Path(data.file.filename)
        path = _virtual_file(part.file_name, here)
        if path is None:
            found.absent.add(str(here.parent / part.file_name))
            return nothing
        with ExitStack() as opened:
            file = data.file
            if path != here:
                found.files.add(path)
                file = opened.enter_context(open_file(path))
            source = look_up(file, part.data_path)
            if not isinstance(source, h5py.Dataset) or not source.shape:
                found.absent.add(f"{path}:{part.data_path}")
                return nothing
            self._check_source(part, source, path)
            inner = self.written(source, above)
            n_source, n_dims = source.shape[0], source.ndim
        found.files |= inner.files
        found.absent |= inner.absent
        found.short |= inner.short
        if part.source_frames is None or n_dims != len(part.reach):
            return nothing if inner.missing is not None and inner.missing.any() else ~nothing
        there: NDArray[np.bool_] = part.source_frames < n_source
        if n_source < part.reach[0]:
            found.short.add(f"{path}:{part.data_path} ({n_source} of {part.reach[0]} frames)")
        if inner.missing is not None:
            there &= ~inner.missing[np.minimum(part.source_frames, n_source - 1)]
        return there

    def _check_source(self, part: _Part, source: h5py.Dataset, path: Path) -> None:
        """Check that the frames of a part's source have the size that is mapped.

        HDF5 (2.0.0) does not, and reads pixels of other places.
        """
        held, due = source.shape, part.reach
        fits = len(held) == len(due) and (
            held[1:] == due[1:] if part.is_whole else all(map(int.__ge__, held[1:], due[1:]))
        )
        if not fits and not (part.is_whole and _longer(held) == _longer(due)):
            shapes = ["x".join(map(str, shape)) for shape in (held, due)]
            raise SourceError(
                f"{self.name}: is made of {path}:{part.data_path}, which is {shapes[0]} where "
                f"{shapes[1]} is mapped: the map is of other files; write it again"
            )


def _longer(shape: tuple[int, ...]) -> list[int]:
    """Lengths of the dims that are longer than one."""
    return [n for n in shape if n != 1]


def _external(data: h5py.Dataset, creation: h5py.h5p.PropDCID) -> FramesWritten:
    """Check that the raw files of a data set have all frames.

    The HDF5 library looks for them from the current folder on.
    """
    beside = Path(data.file.filename).parent
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", str(beside))
    left_bytes = prod(data.shape) * data.dtype.itemsize
    found = FramesWritten()
    for i in range(creation.get_external_count()):
        name, offset, n_bytes = creation.get_external(i)
        path = Path(prefix) / os.fsdecode(name)
        wanted_bytes = min(n_bytes, left_bytes)
        if not path.is_file() or path.stat().st_size < offset + wanted_bytes:
            what = "which is too short" if path.is_file() else "which is no file"
            raise SourceError(
                f"{data.file.filename}: its data are in {path}, {what}: copy it again"
            )
        found.files.add(path)
        left_bytes -= wanted_bytes
    if left_bytes:
        raise SourceError(f"{data.file.filename}: its raw files are too few: write it again")
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """Frames of a virtual data set that a data set of a file holds."""

    file_name: str
    """File, as the virtual data set names it; "." for its own."""
    data_path: str
    """Data set in that file."""
    frames: NDArray[np.int64]
    """Indices of the frames in the virtual data set."""
    frame_size: int
    """Pixels of each that the source holds."""
    source_frames: NDArray[np.int64] | None
    """Their indices in the source; None if they are not along its first dim."""
    reach: tuple[int, ...]
    """Least length of each dim of the source; 0 where it may grow."""
    is_whole: bool
    """Whether all of the source is mapped, whatever its shape is."""


def _parts(data: h5py.Dataset) -> Iterator[_Part]:
    """Parts of a virtual data set; each block of a file name with a block number is one."""
    n_frames = data.shape[0]
    for mapping in data.virtual_sources():
        spans, source_spans = _spans(mapping.vspace), _spans(mapping.src_space)
        lengths = [
            min(n_blocks * block, n)
            for (_, _, n_blocks, block), n in zip(spans, data.shape, strict=True)
        ]
        # HDF5 does not store the shape of a source of which all is mapped.
        is_whole = not source_spans
        reach = tuple(lengths if is_whole else map(_end, source_spans))
        frames = [_indices(spans[0], n_frames)]
        source = np.arange(len(frames[0])) if is_whole else None
        if len(source_spans) > 1:
            source = _indices(source_spans[0], len(frames[0]))
        names = mapping.file_name, mapping.dset_name
        if any("%b" in name for name in names):
            start, stride, _, block = spans[0]
            firsts = range(start, n_frames, max(1, stride))
            frames = [np.arange(first, min(first + block, n_frames)) for first in firsts]
            source = np.arange(block) if is_whole or len(source_spans) > 1 else None
        for number, some in enumerate(frames):
            file, where = (n.replace("%b", str(number)).replace("%%", "%") for n in names)
            if is_whole:
                reach = (len(some), *reach[1:])
            of_source = None if source is None or len(source) < len(some) else source[: len(some)]
            chosen = some[some < n_frames]
            yield _Part(file, where, chosen, prod(lengths[1:]), of_source, reach, is_whole)


def _end(span: _Span) -> int:
    """Where a selection along a dim ends; 0 if it has no end."""
    start, stride, n_blocks, block = span
    if max(n_blocks, block) >= _UNLIMITED:
        return 0
    return start + stride * (n_blocks - 1) + block


_Span = tuple[int, int, int, int]
"""Start, stride, number of blocks (2**64 - 1 for no end) and length of a block."""
_UNLIMITED = 2**64 - 1
"""A number of blocks, or a length, without end (H5S_UNLIMITED)."""


def _spans(space: h5py.h5s.SpaceID) -> list[_Span]:
    """Selection along each dim; of one that is not regular, the box around it."""
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


def _virtual_file(name: str, beside: Path) -> Path | None:
    """File of a virtual data set's source, as the HDF5 library finds it; None if it is not there.

    See ``H5Pset_virtual_prefix``: a prefix, the folder of the file, its folder without links, and
    the current folder; of an absolute name that leads nowhere, the last part.
    """
    if name == ".":
        return beside
    prefixes = os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", str(beside.parent))
    folders = [Path(each) for each in prefixes.split(":") if each]
    folders += [beside.parent, Path(os.path.realpath(beside)).parent, Path()]
    tried = [Path(name)] if os.path.isabs(name) else []
    base = os.path.basename(name) if os.path.isabs(name) else name
    tried += [folder / base for folder in folders]
    return next((path for path in tried if path.is_file()), None)
