"""The pictures of a sweep, their sharpness, and their files: a TIFF stack and a contact sheet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ..io.tiff.writing import TiffStack
from ..planner.plan import value_text
from ..system.disk_space import store_errors
from ..system.threads import parallel_for
from .folder.run_folder import RunFolder
from .report.run_report import MEASURE

INNER = 0.9
"""Part of the picture's half-axes that counts. Beyond, reconstructions have a mask or artefacts."""
STRIP_PIXELS = 2**16
"""Pixels that a thread works on at one time. Its arrays then fit into the cache of a core."""


def sharpness(picture: NDArray[Any]) -> float:
    """Sharpness of a picture: its root mean square gradient over its mean gradient.

    Parameters
    ----------
    picture : ndarray, shape (rows, columns)
        Of any real dtype. Non-finite values count as 0.

    Returns
    -------
    float
        Of the ellipse within `INNER` of the half-axes; 0 if the picture is constant, or too small
        for an ellipse. A large value means few edges, and little between them. It depends neither
        on the scale of the values nor on their offset.

    Notes
    -----
    This is the inverse of the normalized sparsity of D. Krishnan, T. Tay and R. Fergus, CVPR 2011,
    233, times the square root of the number of pixels. Both blur and noise make it smaller.
    Measures of the gradient's size alone mistake noise, and the arcs around a wrong axis of
    rotation, for detail. In four simulated scans, two of them noisy, this measure found the axis of
    all in steps of half a pixel, and Tenengrad that of three.
    """
    n_rows, n_columns = picture.shape
    if min(n_rows, n_columns) < 3:
        return 0.0
    strip = max(1, STRIP_PIXELS // n_columns)
    firsts = range(1, n_rows - 1, strip)
    half_axes = INNER * n_rows / 2, INNER * n_columns / 2
    sums = np.zeros((len(firsts), 3))

    def work(number: int) -> None:
        first = firsts[number]
        last = min(first + strip, n_rows - 1)
        part = np.array(picture[first - 1 : last + 1], np.float32)
        if not np.isfinite(part).all():
            np.nan_to_num(part, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        squares = (part[1:-1, 2:] - part[1:-1, :-2]) ** 2
        squares += (part[2:, 1:-1] - part[:-2, 1:-1]) ** 2
        y = (np.arange(first, last) - (n_rows - 1) / 2) / half_axes[0]
        x = (np.arange(1, n_columns - 1) - (n_columns - 1) / 2) / half_axes[1]
        inner = squares[y[:, None] ** 2 + x**2 < 1]
        total = np.sqrt(inner).sum(dtype=np.float64)
        sums[number] = total, inner.sum(dtype=np.float64), inner.size

    parallel_for(len(firsts), work)
    total, total_squares, count = sums.sum(axis=0).tolist()
    return math.sqrt(total_squares * count) / total if total else 0.0


SHEET_PIXELS = 2400
"""Width of a sheet in pixels, 40 % more than a common screen, for a closer look."""
_SIZES = (96, 640)
"""Smallest and largest side of a small picture, in pixels. Labels need 96, and a larger picture is
better viewed in the stack."""
_GAP, _LABEL = 6, 20
"""Pixels between pictures, and for a label above each."""
_FONT_PIXELS = 13
"""Size of letters, for lines of `_LABEL` pixels."""
_SHADES = (0.5, 99.5)
"""Percentiles of all pictures that become black and white. With the extremes instead, single bright
points, such as metal, would leave the rest in one shade."""
_PAPER, _INK, _MARK = (255, 255, 255), (34, 38, 43), (200, 69, 46)


@dataclass(slots=True)
class ContactSheet:
    """A sheet of small pictures, added one by one."""

    n_pictures: int
    """Number of pictures."""
    shape: tuple[int, int]
    """Rows and columns of each picture."""
    title: str
    """Line above all."""
    suggestion: str = ""
    """Line below it."""
    _small: list[NDArray[np.float32]] = field(default_factory=list)
    _labels: list[str] = field(default_factory=list)

    @property
    def n_columns(self) -> int:
        """Number of pictures in a row."""
        return min(self.n_pictures, max(3, math.ceil(math.sqrt(self.n_pictures))))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of a small picture, in pixels."""
        rows, columns = self.shape
        width = SHEET_PIXELS // self.n_columns - _GAP
        scale = min(max(width, _SIZES[0]), _SIZES[1]) / max(rows, columns)
        if scale > 1:  # an integer, so no values are interpolated
            scale = math.floor(scale)
        return max(1, round(rows * scale)), max(1, round(columns * scale))

    @property
    def n_bytes(self) -> int:
        """Memory for the small pictures and the sheet."""
        small = self.n_pictures * self.size[0] * self.size[1] * 4
        width, height = self._sheet_size()
        # Copies of all small pictures for their percentiles, and of the sheet for the file.
        return 2 * small + 2 * 3 * width * height

    def add(self, picture: NDArray[Any], label: str) -> None:
        """Add a picture. If it is reduced, a pixel is the mean of those that it covers."""
        rows, columns = self.size
        whole = np.asarray(picture, np.float32)
        if not np.isfinite(whole).all():
            whole = np.nan_to_num(whole, nan=0.0, posinf=0.0, neginf=0.0)
        if (rows, columns) == whole.shape:
            small = whole.copy()  # the next value reuses the memory
        else:
            image = Image.fromarray(whole).resize((columns, rows), Image.Resampling.BOX)
            small = np.asarray(image)
        self._small.append(small)
        self._labels.append(label)

    def save(self, path: Path, suggested: int | None) -> None:
        """Write the sheet as a PNG, with a frame around the suggested picture."""
        rows, columns = self.size
        dark, bright = np.percentile(np.stack(self._small), _SHADES)
        scale = 255 / max(float(bright - dark), 1e-30)
        sheet = Image.new("RGB", self._sheet_size(), _PAPER)
        draw = ImageDraw.Draw(sheet)
        font = ImageFont.load_default(size=_FONT_PIXELS)
        for number, line in enumerate((self.title, self.suggestion)):
            draw.text((_GAP, 4 + number * _LABEL), line, _INK, font)
        wide, high = self._cell()
        for number, (small, label) in enumerate(zip(self._small, self._labels, strict=True)):
            left = _GAP + number % self.n_columns * wide
            top = 2 * _LABEL + _GAP + number // self.n_columns * high
            shades = np.clip((small - dark) * scale, 0, 255).astype(np.uint8)
            sheet.paste(Image.fromarray(shades), (left, top + _LABEL))
            is_mark = number == suggested
            text = _fitting(f"{label} (sharpest)" if is_mark else label, wide - _GAP, font)
            draw.text((left, top + 3), text, _MARK if is_mark else _INK, font)
            if is_mark:
                box = (left - 3, top + _LABEL - 3, left + columns + 2, top + _LABEL + rows + 2)
                draw.rectangle(box, outline=_MARK, width=3)
        # The usual level, 6, takes six times as long and gave a larger file.
        with path.open("xb") as file:
            sheet.save(file, format="PNG", compress_level=1)

    def _cell(self) -> tuple[int, int]:
        """Width and height of a picture with its label and gap."""
        return max(self.size[1], _SIZES[0]) + _GAP, self.size[0] + _LABEL + _GAP

    def _sheet_size(self) -> tuple[int, int]:
        wide, high = self._cell()
        n_rows = -(-self.n_pictures // self.n_columns)
        return _GAP + self.n_columns * wide, 2 * _LABEL + _GAP + n_rows * high


def _fitting(text: str, width: int, font: Any) -> str:
    """Shorten a text to a width in pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..."


STACK, SHEET = "sweep.tif", "sweep.png"
"""Names of the pictures in the folder of a sweep."""


@dataclass(slots=True)
class SweepPictures:
    """Collects the picture of each value, in order."""

    parameter: str
    """The parameter, such as ``fbp.center``."""
    values: tuple[Any, ...]
    """Its values."""
    folder: RunFolder | None
    """Folder for the files; None if pictures stay in memory."""
    sharpness: list[float] = field(default_factory=list)
    """Sharpness of each picture."""
    stack: NDArray[Any] | None = None
    """Pictures (values, rows, columns), if they are kept in memory."""
    _file: TiffStack | None = None
    _sheet: ContactSheet | None = None

    @property
    def n_bytes(self) -> int:
        """Host memory for all pictures."""
        if self.stack is not None:
            return self.stack.nbytes
        return 0 if self._sheet is None else self._sheet.n_bytes

    def __enter__(self) -> Self:
        if self.folder is not None:
            self.folder.prepare([STACK, SHEET])
        return self

    def add(self, picture: NDArray[Any], value: Any) -> None:
        """Add the picture of the next value."""
        image = np.ascontiguousarray(picture)
        label, n_values = value_text(value), len(self.values)
        if self.folder is None:
            if self.stack is None:
                self.stack = np.empty((n_values, *image.shape), image.dtype)
            self.stack[len(self.sharpness)] = image
        else:
            if self._file is None or self._sheet is None:
                title = f"{self.parameter}: {n_values:,} values, one scale of grey"
                self._sheet = ContactSheet(n_values, (image.shape[0], image.shape[1]), title)
                path = self.folder.work / STACK
                self._file = TiffStack(path, n_values * image.nbytes, n_values)
            self._file.add(image, f"{self.parameter} = {label}")
            self._sheet.add(image, label)
        self.sharpness.append(sharpness(image))

    def finish(self) -> tuple[Path, ...]:
        """Complete the files; the paths that they are moved to, the stack last."""
        if self.folder is None or self._file is None or self._sheet is None:
            return ()
        best = int(np.argmax(self.sharpness))
        self._sheet.suggestion = f"sharpest by {MEASURE}: {value_text(self.values[best])}"
        sheet = self.folder.work / SHEET
        with store_errors(sheet, self._sheet.n_bytes):
            self._sheet.save(sheet, best)
        self._file.close()
        return tuple(self.folder.path / name for name in (SHEET, STACK))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.__exit__(kind, error, traceback)
