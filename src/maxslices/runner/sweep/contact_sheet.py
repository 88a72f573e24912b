"""The contact sheet of a sweep: all pictures, small, each labelled with its value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SHEET_PIXELS = 2400
"""Width of a sheet: two fifths more than a usual screen has, so that one can look closer."""
_SIZES = (96, 640)
"""Least and largest side of a small picture, in pixels: labels need 96, and a single large picture
is better looked at in the stack."""
_GAP, _LABEL = 6, 20
"""Pixels between pictures, and for a label above each."""
_FONT_PIXELS = 13
"""Size of letters, for lines of `_LABEL` pixels."""
_SHADES = (0.5, 99.5)
"""Percentiles of all pictures that are black and white: single bright points, as of metal, would
leave the rest in one shade."""
_PAPER, _INK, _MARK = (255, 255, 255), (34, 38, 43), (200, 69, 46)


@dataclass(slots=True)
class ContactSheet:
    """Small pictures, collected one by one."""

    n_pictures: int
    """How many there will be."""
    shape: tuple[int, int]
    """Rows and columns of each picture."""
    title: str
    """Line above all; the sheet is at least as wide."""
    suggestion: str = ""
    """Line below it."""
    _small: list[NDArray[np.float32]] = field(default_factory=list)
    _labels: list[str] = field(default_factory=list)

    @property
    def n_columns(self) -> int:
        """Pictures beside each other."""
        return min(self.n_pictures, max(3, math.ceil(math.sqrt(self.n_pictures))))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of a small picture, in pixels."""
        rows, columns = self.shape
        width = SHEET_PIXELS // self.n_columns - _GAP
        scale = min(1.0, min(max(width, _SIZES[0]), _SIZES[1]) / max(rows, columns))
        return max(1, round(rows * scale)), max(1, round(columns * scale))

    @property
    def n_bytes(self) -> int:
        """Bytes that the small pictures and the sheet take."""
        small = self.n_pictures * self.size[0] * self.size[1] * 4
        width, height = self._sheet_size()
        # Copies of all small pictures for their percentiles, and of the sheet for the file.
        return 2 * small + 2 * 3 * width * height

    def add(self, picture: NDArray[Any], label: str) -> None:
        """Add a picture; each of its small pixels is the mean of those that it covers."""
        rows, columns = self.size
        whole = np.asarray(picture, np.float32)
        if not np.isfinite(whole).all():
            whole = np.nan_to_num(whole, nan=0.0, posinf=0.0, neginf=0.0)
        if (rows, columns) == whole.shape:
            small = whole.copy()  # the next value is computed in the same memory
        else:
            image = Image.fromarray(whole).resize((columns, rows), Image.Resampling.BOX)
            small = np.asarray(image)
        self._small.append(small)
        self._labels.append(label)

    def save(self, path: Path, suggested: int | None) -> None:
        """Write the sheet as a PNG, with a frame around the picture that is suggested."""
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
        font = ImageFont.load_default(size=_FONT_PIXELS)
        title = max(font.getlength(line) for line in (self.title, self.suggestion))
        width = max(_GAP + self.n_columns * wide, 2 * _GAP + math.ceil(title))
        return width, 2 * _LABEL + _GAP + n_rows * high


def _fitting(text: str, width: int, font: Any) -> str:
    """Text cut to a width in pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..."
