"""The picture of a run: three slices of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..errors import SourceError
from ..io.results.result_slice import some_slices
from ..runner.sweep_pictures import ContactSheet
from ..system.disk_space import hidden_path, store_errors

N_SLICES = 3


def draw_slices(
    files: Sequence[Path], slice_name: Callable[[Path, int], str], path: Path, title: str
) -> None:
    """Write a PNG of three slices, on one scale of grey.

    Parameters
    ----------
    files : sequence of Path
        Results of a run; the last one is drawn.
    slice_name : callable
        Given a file and the index of a slice in it, names the slice.
    path : Path
        The picture, in place of one that is there.
    title : str
        Line above the slices.

    Raises
    ------
    SourceError
        If there is no result.
    StoreError
        If the picture cannot be written.
    """
    result = next((each for each in files if each.name.startswith("result")), None)
    if result is None:
        raise SourceError("no picture: the last step of the pipeline saves no result")
    _, found = some_slices(result, _three)
    images = [np.abs(image) if np.iscomplexobj(image) else image for _, image in found]
    rows, columns = images[0].shape
    sheet = ContactSheet(len(found), (rows, columns), title)
    for (number, _), image in zip(found, images, strict=True):
        sheet.add(image, slice_name(result, number))
    with store_errors(path, sheet.n_bytes):
        part = hidden_path(path)
        part.unlink(missing_ok=True)
        sheet.save(part, None)
        part.replace(path)


def _three(n_slices: int) -> list[int]:
    """A quarter, half and three quarters of the way; the middle three or fewer of a few.

    Examples
    --------
    >>> _three(100), _three(4), _three(2)
    ([25, 50, 75], [1, 2, 3], [0, 1])
    """
    if n_slices <= N_SLICES:
        return list(range(n_slices))
    return [n_slices * quarter // 4 for quarter in (1, 2, 3)]
