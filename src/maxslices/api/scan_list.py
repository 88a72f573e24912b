"""Several scans of one command: found by patterns, each with a folder for its results."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError


def find_scans(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], out: Path
) -> dict[Path, Path]:
    """Find scans, and name a folder for the results of each.

    A folder has the name of the scan without its suffix; where several scans would share that, the
    suffix and as many parts of their paths as tell them apart.

    Parameters
    ----------
    given : path-like, or iterable of them
        Paths, or patterns such as ``"scans/*.nxs"``; ``**`` stands for any folders.
    out : Path
        Folder of these folders; a pattern does not find it.

    Returns
    -------
    dict of Path to Path
        Path of each scan, in the order given, those of a pattern by name -> its folder. One that is
        named twice, in whatever way, is there once, by the first of its names.

    Raises
    ------
    UsageError
        If there is no scan, a pattern finds none, or the same folder would be that of two.
    """
    each: list[Any] = [given]
    if isinstance(given, Iterable) and not isinstance(given, str | os.PathLike | np.ndarray):
        each = [*given]
    for one in each:
        if not isinstance(one, str | os.PathLike):
            raise UsageError(f"scans are paths, not a {type(one).__name__}: give a list of paths")
    found: dict[str, Path] = {}
    for path in (path for one in each for path in _matching(os.fspath(one), out)):
        found.setdefault(os.path.realpath(path), path)
    scans = list(found.values())
    if not scans:
        raise UsageError("no scan is named")
    whole = [path.absolute() for path in scans]
    names = [path.stem or path.name for path in whole]
    shared = _shared(names)
    for n_parts in range(1, max(len(path.parts) for path in whole)):
        if not shared:
            break
        # Others keep their names, by which --resume knows what was done before.
        names = [
            "-".join(path.parts[1:][-n_parts:]) if name in shared else name
            for path, name in zip(whole, names, strict=True)
        ]
        shared = _shared(names)
    if shared:
        raise UsageError(
            f"the results of two scans would go to {out / min(shared)}: run them apart"
        )
    return {scan: out / name for scan, name in zip(scans, names, strict=True)}


def _shared(names: list[str]) -> set[str]:
    """Names that there are several times."""
    return {name for name, count in Counter(names).items() if count > 1}


def _matching(text: str, out: Path) -> list[Path]:
    """Paths that a pattern finds; a path that is there, or no pattern, is itself."""
    if not text:
        raise UsageError("the path of a scan is empty")
    if os.path.lexists(text) or not glob.has_magic(text):
        return [Path(text)]
    here = out.absolute()
    found = [Path(name) for name in sorted(glob.glob(text, recursive=True))]
    found = [path for path in found if path.absolute() not in (here, *here.parents)]
    if not found:
        raise UsageError(f"no scan matches {text}")
    return found
