"""A scan that consists of stacks of frames: projections, flats and darks, each a `Selection`.

Each kind of file only implements reading parts of frames (`Frames`). The rest of a `Source` is the
same for all kinds of files.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import ScanChangedError, SourceError
from ..access import SIDE_NAMES, FlatWeights, SideName, Source
from ..check_arrays import check_output_block, warn_of_missing_angles
from ..frames.frames import ABORTED, ArrayFrames, JoinedFrames, Selection
from ..results.result_info import PixelSize
from .angles import angle_indices, projection_numbers
from .facts import StoredFacts
from .frame_means import FrameMeans
from .loader import LoaderOptions


class FrameSource(Source):
    """A `Source` that consists of stacks of frames.

    Parameters
    ----------
    name : str
        Name of the scan in messages.
    data : Selection
        The projections.
    options : LoaderOptions, optional
        The part of the scan to read, which flats and darks to read, and whether missing ones are
        replaced by one frame of ones or zeros, as by httomo's loader.
    sides : mapping of str to Selection or None, optional
        Flats and darks with the same rows and columns as the projections. If they are in the stack
        of the projections, their order in it is the order of acquisition.
    flats_after : Selection, optional
        Flats taken after the projections. Those of `sides` were then taken before.
    angles : ndarray, optional
        Angles in radians: of each projection, of each projection in the preview, or of each frame
        of the stack.
    stored : StoredFacts, optional
        Facts stored next to the frames.
    currents : ndarray, optional
        Beam current of each frame of the projections' stack, which scales the flats.

    Raises
    ------
    SourceError
        If the flats, the darks or the angles do not fit the projections, or frames are missing.
    """

    def __init__(
        self,
        name: str,
        data: Selection,
        options: LoaderOptions | None = None,
        *,
        sides: Mapping[SideName, Selection | None] | None = None,
        flats_after: Selection | None = None,
        angles: NDArray[np.float32] | None = None,
        stored: StoredFacts | None = None,
        currents: NDArray[np.float64] | None = None,
    ) -> None:
        options = options or LoaderOptions()
        preview = options.preview
        self.name = name
        self.stored = stored
        """Facts stored next to the frames; None for files without a layout."""
        self.pixel_size: PixelSize | None = None if stored is None else stored.pixel_size
        """Pixel size at the sample; None if unknown."""
        self._sides: dict[SideName, Selection | None] = dict.fromkeys(SIDE_NAMES)
        places: dict[SideName, NDArray[np.int64] | None] = dict.fromkeys(SIDE_NAMES)
        _, n_rows, n_columns = data.spec.shape
        rows = preview.bounds(1, n_rows, name)
        columns = preview.bounds(2, n_columns, name)
        for side, selection in (sides or {}).items():
            if selection is not None:
                after = flats_after if side == "flats" else None
                chosen, places[side] = _side(side, selection, after, data, options)
                self._sides[side] = chosen.crop(rows, columns)
        numbers = projection_numbers(data, preview)
        self.angles: NDArray[np.float32] | None = None
        """Read-only."""
        if angles is not None:
            self.angles = angles[angle_indices(name, angles.size, data, preview)]
            self.angles.flags.writeable = False
            if numbers[-1] - numbers[0] + preview.angle_step >= data.spec.shape[0]:
                warn_of_missing_angles(name, self.angles)  # a preview may cover few degrees
        self.detector_start = rows[0], columns[0]
        self._data = data.take(numbers).crop(rows, columns)
        self.spec = self._data.spec
        scales = None
        if currents is not None:
            scales = _currents(name, currents, self._data, self._sides["flats"])
        self._means = FrameMeans(self._sides, numbers, places, scales, self._data)
        paths: list[Path] = []
        for what, read in (("projections", self._data), *self._sides.items()):
            if read is not None:
                check_written(read, what)
                paths += read.frames.files
        self._stamps = FileStamps(paths)
        self.dummies = tuple(
            side for side, each in self._sides.items() if each is None and options.makes_up(side)
        )
        for side in self.dummies:
            fill = np.ones if side == "flats" else np.zeros
            frame = fill((1, *self.spec.shape[1:]), self.spec.dtype)
            self._sides[side] = Selection.of(ArrayFrames(f"dummy {side} of {name}", frame))

    def with_rows(self, start: int, stop: int) -> FrameSource:
        """Return the same scan with some of its rows; both use, and close, the same files."""
        part = copy.copy(self)
        columns = (0, self.spec.shape[2])
        part._data = self._data.crop((start, stop), columns)
        part._sides = {
            side: None if each is None else each.crop((start, stop), columns)
            for side, each in self._sides.items()
        }
        part.spec = part._data.spec
        part.detector_start = self.detector_start[0] + start, self.detector_start[1]
        return part

    def with_projections(
        self, data: NDArray[Any], rows: tuple[int, int], angles: NDArray[np.float32] | None
    ) -> FrameSource:
        """Return the same scan with some rows of other projections, which are in memory.

        Flats and darks are kept if their shape fits, and angles unless they are fewer.
        """
        part = self.with_rows(*rows) if data.shape[1] == self.spec.shape[1] else copy.copy(self)
        if rows != (0, data.shape[1]):
            data = np.ascontiguousarray(data[:, slice(*rows)])
        part._data = Selection.of(ArrayFrames(self.name, data))
        part.spec = part._data.spec
        part._sides = {
            side: each if each is not None and each.spec.shape[1:] == data.shape[1:] else None
            for side, each in part._sides.items()
        }
        if part._sides["flats"] is None:
            part._means = FrameMeans(part._sides, np.arange(len(data)), dict.fromkeys(SIDE_NAMES))
        part.angles = None if angles is None or len(angles) < len(data) else angles[: len(data)]
        return part

    @property
    def reads_rows(self) -> bool:
        """True if rows of all projections are read without the other rows."""
        return self._data.frames.reads_rows

    def flat_weights(self) -> FlatWeights | None:
        """Weights of the flats for each projection; see `frame_means`."""
        return self._means.flat_weights

    def frame_warnings(self, sides: Iterable[str]) -> list[str]:
        """Warnings about flats or darks, if they are in `sides`."""
        return [f"{self.name}: {text}" for text in self._means.warnings(sides)]

    @property
    def flats(self) -> ArraySpec | None:
        """Shape and dtype of the flats; None without flats."""
        flats = self._sides["flats"]
        return None if flats is None else flats.spec

    @property
    def darks(self) -> ArraySpec | None:
        """Shape and dtype of the darks; None without darks."""
        darks = self._sides["darks"]
        return None if darks is None else darks.spec

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read a block into `out`; see `Source.read`."""
        check_output_block(self.spec, slice_dim, start, stop, out)
        n_angles, n_rows, _ = self.spec.shape
        spans = ((start, stop), (0, n_rows)) if slice_dim == 0 else ((0, n_angles), (start, stop))
        self._data.read(*spans, out)

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """View of slices; see `SupportsWindow.window`."""
        whole = self._data.array
        if whole is None:
            return None
        return whole[start:stop] if slice_dim == 0 else whole[:, start:stop]

    def side_window(
        self, name: SideName, slice_dim: int, start: int, stop: int
    ) -> NDArray[Any] | None:
        """View of flats or darks; see `Source.side_window`."""
        side = self._sides[name]
        whole = None if side is None else side.array
        return whole if whole is None or slice_dim == 0 else whole[:, start:stop]

    def read_side(self, name: SideName, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        """Read flats or darks for a block; see `Source.read_side`."""
        side = self._sides[name]
        if side is None:
            raise SourceError(
                f"{self.name}: there are no {name} in this scan: give them to the loader "
                f"({name}: file and data_path)"
            )
        n_frames, n_rows, n_columns = side.spec.shape
        rows = (0, n_rows) if slice_dim == 0 else (start, stop)
        out = np.empty((n_frames, rows[1] - rows[0], n_columns), side.spec.dtype)
        side.read((0, n_frames), rows, out)
        return out

    def check_unchanged(self) -> None:
        """Check that no file changed since it was opened; see `Source.check_unchanged`."""
        self._stamps.check()

    def close(self) -> None:
        """Close the files; a second call has no effect."""
        for selection in (self._data, *self._sides.values()):
            if selection is not None:
                selection.frames.close()


def _side(
    side: SideName,
    selection: Selection,
    after: Selection | None,
    data: Selection,
    options: LoaderOptions,
) -> tuple[Selection, NDArray[np.int64] | None]:
    """Select flats or darks, and return the number of projections before each, if known.

    Raises
    ------
    SourceError
        If their shape does not fit that of the projections.
    """
    places = None
    if selection.frames is data.frames:
        places = np.searchsorted(data.indices, selection.indices)
    if after is not None:
        places = np.repeat([0, data.spec.shape[0]], [selection.spec.shape[0], after.spec.shape[0]])
        selection = Selection.of(JoinedFrames(selection.frames, after.frames))
    choice = options.choice(side)
    if choice is not None:
        chosen = choice.of(selection.spec.shape[0], f"{data.frames.name}: {side}")
        selection = selection.take(chosen)
        places = None if places is None else places[chosen]
    if selection.spec.shape[1:] != data.spec.shape[1:]:
        shape, due = ("x".join(map(str, each.spec.shape[1:])) for each in (selection, data))
        raise SourceError(
            f"{selection.frames.name}: {side} of {shape} pixels do not fit the projections of "
            f"{data.frames.name}, {due}: give {side} taken with the same detector window"
        )
    return selection, places


def _currents(
    name: str, currents: NDArray[np.float64], data: Selection, flats: Selection | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Beam currents of the projections and of the flats.

    Raises
    ------
    SourceError
        If their number is not that of the frames, or one is not above 0.
    """
    n_frames = data.frames.spec.shape[0]
    if flats is None or flats.frames is not data.frames or currents.size != n_frames:
        raise SourceError(
            f"{name}: {currents.size} beam currents for {n_frames} frames of projections and flats "
            "in one stack: beam_current needs one for each frame, so leave it out"
        )
    chosen = currents[data.indices], currents[flats.indices]
    if not all((each > 0).all() and np.isfinite(each).all() for each in chosen):
        raise SourceError(
            f"{name}: some beam currents are not above 0: leave out beam_current, or leave out "
            "these frames"
        )
    return chosen


def check_written(selection: Selection, what: str) -> None:
    """Check that frames were written.

    Parameters
    ----------
    selection : Selection
        Frames to check.
    what : str
        Name of the frames: projections, flats or darks.

    Raises
    ------
    SourceError
        If frames are missing.
    """
    written = selection.frames.written()
    lost = selection.indices[written.missing[selection.indices]]
    if lost.size:
        raise SourceError(
            f"{selection.frames.name}: {lost.size} of {selection.spec.shape[0]} {what} were never "
            f"written (the first: {lost[0]}): {written.why or ABORTED}"
        )


class FileStamp(NamedTuple):
    """Values that change if a file is replaced or modified."""

    device: int
    """Device of the file."""
    inode: int
    """Inode on the device."""
    n_bytes: int
    """Size."""
    time_ns: int
    """Time of its last change."""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Stamp of a file or folder.

        Raises
        ------
        OSError
            If its status cannot be read.
        """
        status = os.stat(path)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class FileStamps:
    """Stamps of files, to detect later changes."""

    def __init__(self, paths: Iterable[Path]) -> None:
        # Absolute paths, because a method may change the current folder.
        self._stamps = {path.absolute(): _stamp(path) for path in paths}

    def check(self) -> None:
        """Check that no file was removed, replaced or changed.

        Raises
        ------
        ScanChangedError
            Naming the first file that was.
        """
        for path, before in self._stamps.items():
            now = _stamp(path)
            if now != before and before is not None:
                what = "removed" if now is None else "changed, or replaced by another file,"
                raise ScanChangedError(
                    f"{path}: was {what} while it was read, so the result may mix old data and "
                    "new: run again when nothing writes to it"
                )


def _stamp(path: Path) -> FileStamp | None:
    try:
        return FileStamp.of(path)
    except OSError:
        return None
