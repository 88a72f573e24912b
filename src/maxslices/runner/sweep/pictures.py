"""The pictures of a sweep: a TIFF stack and a contact sheet, or an array in memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...io.tiff.stack import TiffStack
from ...planner.sweep_plan import SweepPlan, value_text
from ...system.disk_space import give_name, hidden_path, store_errors
from ..folder.results_folder import RunFolder
from .contact_sheet import ContactSheet
from .sharpness import MEASURE, sharpness

STACK, SHEET = "sweep.tif", "sweep.png"
"""Names of the pictures in the folder of a sweep."""


@dataclass(slots=True)
class SweepPictures:
    """Takes the picture of each value, in order."""

    plan: SweepPlan
    """The sweep."""
    folder: RunFolder | None
    """Where they are written; None keeps them in memory."""
    sharpness: list[float] = field(default_factory=list)
    """Sharpness of each picture."""
    stack: NDArray[Any] | None = None
    """Pictures (values, rows, columns), if they are kept in memory."""
    _file: TiffStack | None = None
    _sheet: ContactSheet | None = None

    def __enter__(self) -> Self:
        picture = self.plan.picture
        assert picture is not None
        if self.folder is None:
            self.stack = np.empty(picture.shape, picture.dtype)
            return self
        self.folder.begin_alone([STACK, SHEET])
        n_values, *shape = picture.shape
        title = f"{self.plan.parameter}: {n_values:,} values, one scale of grey"
        self._sheet = ContactSheet(n_values, (shape[0], shape[1]), title)
        self._file = TiffStack(self.folder.path / STACK, picture.nbytes, n_values)
        return self

    def add(self, picture: NDArray[Any], value: Any) -> None:
        """Add the picture of the next value."""
        image = np.ascontiguousarray(picture)
        label = value_text(value)
        if self.stack is not None:
            self.stack[len(self.sharpness)] = image
        if self._file is not None and self._sheet is not None:
            self._file.add(image, f"{self.plan.parameter} = {label}")
            self._sheet.add(image, label)
        self.sharpness.append(sharpness(image))

    def finish(self) -> tuple[Path, ...]:
        """Give the files their names; their paths, that of the stack last."""
        if self.folder is None or self._file is None or self._sheet is None:
            return ()
        best = int(np.argmax(self.sharpness))
        sheet = self.folder.path / SHEET
        self._sheet.suggestion = f"sharpest by {MEASURE}: {value_text(self.plan.values[best])}"
        with store_errors(sheet, self._sheet.n_bytes):
            hidden_path(sheet).unlink(missing_ok=True)  # what a killed run left behind
            self._sheet.save(hidden_path(sheet), best)
        self.folder.finish()
        return give_name(sheet), self._file.finish()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None and self.folder is not None:
            with suppress(OSError):
                hidden_path(self.folder.path / SHEET).unlink(missing_ok=True)
            self._file.__exit__(kind, error, traceback)
