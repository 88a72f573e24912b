"""A scan in TIFFs: one of many pages, a folder, or folders of projections, flats and darks."""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import SourceError
from ..access import SideName
from ..frames.frames import Frames, Selection
from ..paths import TIFF_SUFFIXES, check_readable
from ..tiff.frames import open_tiffs
from .loader import LoaderOptions

_PROJECTIONS = re.compile(r"proj|tomo|sample|scan|radio|image|data", re.IGNORECASE)
"""What names of folders of projections have in them."""
_SIDES: dict[SideName, re.Pattern[str]] = {
    "flats": re.compile(
        r"(?<![a-z])(((flat|bright)(_?field)?|white|ref(erence)?)s?|open(_?beam)?s?)(?![a-z])",
        re.IGNORECASE,
    ),
    "darks": re.compile(
        r"(?<![a-z])((dark(_?(field|current))?|black)s?|bias)(?![a-z])", re.IGNORECASE
    ),
}
"""Words in names of folders of flats and darks; a scan of an opening is not one of open beam."""


def tiff_stacks(
    path: Path, options: LoaderOptions
) -> tuple[Frames, dict[SideName, Selection | None]]:
    """Open the stacks of a scan in TIFFs: its projections, flats and darks.

    A folder without TIFFs may have one folder of projections, by its name, or the only one that is
    neither of flats nor of darks. Flats and darks are in folders named so, next to the projections
    or to their folder: those before the scan, then those after it.

    Raises
    ------
    SourceError
        If there are no TIFFs, several folders may be the projections, or frames do not fit.
    """
    if check_readable(path) == "file":
        frames = open_tiffs(path)
        if frames.spec.shape[0] == 1:
            raise SourceError(
                f"{path}: has one page, which is not a scan: give the folder of its TIFFs, "
                f"{path.parent}"
            )
        return frames, {}
    projections, beside = path, path
    if not _has_tiffs(path):
        projections = _projections(path)
    elif _PROJECTIONS.search(path.name) and not _folders(path):
        beside = path.resolve().parent
    sides: dict[SideName, Selection | None] = {}
    for side, pattern in _SIDES.items():
        found = [each for each in _folders(beside) if pattern.search(each.name)]
        if found and options.side(side) == "auto":
            before_first = sorted(found, key=lambda each: "after" in each.name.lower())
            first, *others = map(open_tiffs, before_first)
            sides[side] = Selection.of(first.followed_by(others) if others else first)
    return open_tiffs(projections), sides


def _has_tiffs(folder: Path) -> bool:
    return any(
        each.suffix.lower() in TIFF_SUFFIXES and not each.name.startswith(".")
        for each in folder.iterdir()
    )


def _folders(folder: Path) -> list[Path]:
    """Folders of TIFFs in a folder."""
    try:
        return [each for each in sorted(folder.iterdir()) if each.is_dir() and _has_tiffs(each)]
    except OSError:  # one that cannot be read is of no use
        return []


def _projections(folder: Path) -> Path:
    """Folder of the projections in a folder; itself, which has no TIFFs, if there is none."""
    others = [
        each
        for each in _folders(folder)
        if not any(pattern.search(each.name) for pattern in _SIDES.values())
    ]
    named = [each for each in others if _PROJECTIONS.search(each.name)] or others
    if len(named) > 1:
        names = ", ".join(each.name for each in named)
        raise SourceError(f"{folder}: the projections may be in {names}: give one of them")
    return named[0] if named else folder
