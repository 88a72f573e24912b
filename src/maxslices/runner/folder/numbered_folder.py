"""A folder for the results of a run that nobody named one for."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path


def numbered_folder(*names: str) -> Path:
    """Folder here that is not there yet, named after files; numbered if there is one.

    Parameters
    ----------
    names : str
        Paths of the scan and the pipeline.

    Examples
    --------
    >>> numbered_folder("/data/flower.nxs", "fbp.yaml").name
    'flower-fbp'
    """
    stem = "-".join(Path(name).stem or "results" for name in names)
    numbered = (Path(stem if number == 1 else f"{stem}-{number}") for number in count(1))
    return next(path for path in numbered if not os.path.lexists(path))
