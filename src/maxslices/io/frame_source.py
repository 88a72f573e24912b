"""A scan as stacks of frames: which frames are projections, flats and darks, and what of them.

Every kind of file needs to be able to do one thing, to read a box of consecutive frames
(`Frames`); what a scan is beyond that is the same for all of them and is done here once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from ..model.arrays import ArraySpec
from .access import HasDetectorStart, SupportsSideWindow, SupportsView, SupportsWindow
from .check_arrays import check_target
from .closing import Closing
from .loader_options import Preview
from .side_name import SideName

Span = tuple[int, int]
"""First index, and the one after the last."""


class Frames(Protocol):
    """A stack of frames that is read in boxes."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def spec(self) -> ArraySpec:
        """Shape (frames, rows, columns) and native dtype."""
        ...

    def read_box(self, frames: Span, rows: Span, columns: Span, out: NDArray[Any]) -> None:
        """Read a box into `out`, C-contiguous, of the box's shape and the native dtype.

        Raises
        ------
        SourceError
            If it cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        ...


def runs_of(indices: Iterable[int]) -> tuple[Span, ...]:
    """Return increasing indices as spans of consecutive ones.

    Examples
    --------
    >>> runs_of([0, 1, 2, 5, 7, 8])
    ((0, 3), (5, 6), (7, 9))
    """
    runs: list[Span] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class Selection:
    """Some frames of a stack, and a window of each."""

    frames: Frames
    """The stack."""
    runs: tuple[Span, ...]
    """Which of its frames, at least one, as spans of consecutive ones in order."""
    rows: Span
    """Which of their rows."""
    columns: Span
    """Which of their columns."""

    @classmethod
    def of(cls, frames: Frames, indices: Iterable[int] | None = None) -> Selection:
        """Return the frames with `indices` (None: all), whole."""
        n_frames, n_rows, n_columns = frames.spec.shape
        runs = ((0, n_frames),) if indices is None else runs_of(int(i) for i in indices)
        return cls(frames, runs, (0, n_rows), (0, n_columns))

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of what is selected."""
        n_frames = sum(stop - start for start, stop in self.runs)
        shape = (n_frames, self.rows[1] - self.rows[0], self.columns[1] - self.columns[0])
        return ArraySpec(shape, self.frames.spec.dtype)

    @property
    def array(self) -> NDArray[Any] | None:
        """What is selected, not copied and with gaps perhaps, if it is in memory; else None."""
        whole: NDArray[Any] | None = getattr(self.frames, "array", None)
        if whole is None or len(self.runs) != 1 or whole.dtype != self.frames.spec.dtype:
            return None
        return whole[slice(*self.runs[0]), slice(*self.rows), slice(*self.columns)]

    def part(self, frames: Span) -> Selection:
        """Return the selected frames from the one to before the other of `frames`."""
        runs, offset = [], 0
        for start, stop in self.runs:
            first = start + max(frames[0] - offset, 0)
            last = min(stop, start + frames[1] - offset)
            if first < last:
                runs.append((first, last))
            offset += stop - start
        return Selection(self.frames, tuple(runs), self.rows, self.columns)

    def window(self, rows: Span, columns: Span) -> Selection:
        """Return a window of each frame, counted within the window that there is."""
        (top, _), (left, _) = self.rows, self.columns
        return Selection(
            self.frames,
            self.runs,
            (top + rows[0], top + rows[1]),
            (left + columns[0], left + columns[1]),
        )

    def read(self, frames: Span, rows: Span, out: NDArray[Any]) -> None:
        """Read selected frames, and of them some rows, into `out` of that shape."""
        starts = [0]
        for start, stop in self.runs:
            starts.append(starts[-1] + stop - start)
        box_rows = (self.rows[0] + rows[0], self.rows[0] + rows[1])
        position = frames[0]
        while position < frames[1]:
            run = bisect_right(starts, position) - 1
            last = min(frames[1], starts[run + 1])
            first_frame = self.runs[run][0] + position - starts[run]
            self.frames.read_box(
                (first_frame, first_frame + last - position),
                box_rows,
                self.columns,
                out[position - frames[0] : last - frames[0]],
            )
            position = last


class FrameSource(Closing, SupportsView, SupportsWindow, SupportsSideWindow, HasDetectorStart):
    """A `Source` made of stacks of frames.

    Parameters
    ----------
    name : str
        What messages call the scan.
    data : Selection
        The projections.
    flats, darks : Selection, optional
        Frames of the projections' rows and columns.
    angles : ndarray, optional
        Angle of each projection in radians.
    preview : Preview, optional
        Part of the scan to show.

    Raises
    ------
    SourceError
        If these do not go together.
    """

    def __init__(
        self,
        name: str,
        data: Selection,
        *,
        flats: Selection | None = None,
        darks: Selection | None = None,
        angles: NDArray[np.float32] | None = None,
        preview: Preview | None = None,
    ) -> None:
        preview = preview or Preview()
        self._name = name
        self._sides: dict[SideName, Selection | None] = {"flats": flats, "darks": darks}
        n_angles, n_rows, n_columns = data.spec.shape
        for side, selection in self._sides.items():
            if selection is not None and selection.spec.shape[1:] != (n_rows, n_columns):
                found = "x".join(map(str, selection.spec.shape[1:]))
                raise SourceError(
                    f"{selection.frames.name}: {side} of {found} pixels do not fit the "
                    f"projections of {name}, {n_rows}x{n_columns}: give {side} taken with the "
                    "same detector window"
                )
        if angles is not None and angles.shape != (n_angles,):
            raise SourceError(
                f"{name}: {angles.size} rotation angles for {n_angles} projections: give one angle "
                "a projection (rotation_angles)"
            )
        kept = preview.window(0, n_angles, name)
        rows = preview.window(1, n_rows, name)
        columns = preview.window(2, n_columns, name)
        self._detector_start = rows[0], columns[0]
        self._data = data.part(kept).window(rows, columns)
        for side, selection in self._sides.items():
            if selection is not None:
                self._sides[side] = selection.window(rows, columns)
        self._spec = self._data.spec
        self._angles = None
        if angles is not None:
            self._angles = angles[slice(*kept)].copy()
            self._angles.flags.writeable = False

    @property
    def name(self) -> str:
        """What messages call the scan."""
        return self._name

    @property
    def detector_start(self) -> tuple[int, int]:
        """First row and first column of the detector that are read."""
        return self._detector_start

    @property
    def spec(self) -> ArraySpec:
        """Shape and native dtype of the projections."""
        return self._spec

    @property
    def flats(self) -> ArraySpec | None:
        """Shape and dtype of the flats; None without any."""
        flats = self._sides["flats"]
        return None if flats is None else flats.spec

    @property
    def darks(self) -> ArraySpec | None:
        """Shape and dtype of the darks; None without any."""
        darks = self._sides["darks"]
        return None if darks is None else darks.spec

    @property
    def angles(self) -> NDArray[np.float32] | None:
        """Angle of each projection in radians (read-only), or None."""
        return self._angles

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read a block into `out`; see `Source.read`."""
        check_target(self._spec, slice_dim, start, stop, out)
        n_angles, n_rows, _ = self._spec.shape
        spans = ((start, stop), (0, n_rows)) if slice_dim == 0 else ((0, n_angles), (start, stop))
        self._data.read(*spans, out)

    def view(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """Return slices of a scan that is in memory, read-only and not copied, or None."""
        part = self.window(slice_dim, start, stop) if slice_dim == 0 else None
        return None if part is None else read_only(part)

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """Return slices of a scan that is in memory, not copied and with gaps perhaps, or None."""
        whole = self._data.array
        if whole is None:
            return None
        return whole[start:stop] if slice_dim == 0 else whole[:, start:stop]

    def side_window(
        self, name: SideName, slice_dim: int, start: int, stop: int
    ) -> NDArray[Any] | None:
        """Return flats or darks for a block if they are in memory, not copied, or None."""
        side = self._sides[name]
        whole = None if side is None else side.array
        return whole if whole is None or slice_dim == 0 else whole[:, start:stop]

    def read_side(self, name: SideName, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        """Return flats or darks for a block; see `Source.read_side`."""
        side = self._sides[name]
        if side is None:
            raise SourceError(
                f"{self._name}: there are no {name} in this scan: give them to the loader "
                f"({name}: file and data_path)"
            )
        n_frames, n_rows, n_columns = side.spec.shape
        rows = (0, n_rows) if slice_dim == 0 else (start, stop)
        out = np.empty((n_frames, rows[1] - rows[0], n_columns), side.spec.dtype)
        side.read((0, n_frames), rows, out)
        return out

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for selection in (self._data, *self._sides.values()):
            if selection is not None:
                selection.frames.close()


def read_only(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return a view that cannot be written to, if the array is C-contiguous."""
    if not array.flags.c_contiguous:
        return None
    view = array.view()
    view.flags.writeable = False
    return view
