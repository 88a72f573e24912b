"""Pixel size of a scan, as its file stores it or a user gives it."""

from __future__ import annotations

import math
import re
from pathlib import Path

from ..errors import SourceError, UsageError
from .result_info import PixelSize
from .stored_facts import StoredFact, stored_facts

_UM = {
    "m": 1e6, "meter": 1e6, "metre": 1e6, "meters": 1e6, "metres": 1e6,
    "cm": 1e4, "mm": 1e3, "millimeter": 1e3, "millimetre": 1e3,
    "um": 1.0, "µm": 1.0, "μm": 1.0, "micron": 1.0, "microns": 1.0, "micrometer": 1.0,
    "micrometre": 1.0, "nm": 1e-3, "nanometer": 1e-3, "nanometre": 1e-3,
}  # fmt: skip
"""Micrometres in a unit, as beamlines write it."""
_SIZE = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(\S+)\s*")


def pixel_size_of(scan: Path) -> PixelSize | None:
    """Read the pixel size that a scan's file stores; None if it has none, or none with a unit.

    What is stored of the sample (an effective size, as the ESRF writes it) comes before what is
    stored of the detector.
    """
    try:
        facts = stored_facts(scan)
    except SourceError:
        return None
    if facts is None:
        return None
    found = [fact for fact in facts.values if fact.subject == "pixel_size"]
    found.sort(key=lambda fact: "sample" not in fact.where.lower())
    row, column = _first(found, "y"), _first(found, "x")
    row, column = row or column, column or row
    if row is None or column is None:
        return None
    where = ", ".join(dict.fromkeys((row[1], column[1])))
    return PixelSize(row[0], column[0], where.encode(errors="backslashreplace").decode())


def parse_pixel_size(given: str | float) -> PixelSize:
    """Parse a pixel size: ``3.25um``, or a number of micrometres.

    Raises
    ------
    UsageError
        If it is none.

    Examples
    --------
    >>> parse_pixel_size("0.65 um").row_um, parse_pixel_size("0.00325mm").row_um
    (0.65, 3.25)
    """
    um = _um(given) if isinstance(given, str) else float(given)
    if um is None or not (math.isfinite(um) and um > 0):
        raise UsageError(
            f"the pixel size {given!r} is not a length: give a number with a unit, such as 3.25um"
        )
    return PixelSize(um, um, "given")


def _first(facts: list[StoredFact], axis: str) -> tuple[float, str] | None:
    for fact in facts:
        name = fact.where.rpartition("/")[2].lower()
        if name == "pixel_size" or axis in name.replace("pixel_size", ""):
            um = _um(fact.value)
            if um is not None and math.isfinite(um) and um > 0:
                return um, fact.where
    return None


def _um(text: str) -> float | None:
    match = _SIZE.fullmatch(text)
    factor = None if match is None else _UM.get(match[2]) or _UM.get(match[2].lower())
    if match is None or factor is None:
        return None
    try:
        return float(f"{float(match[1]) * factor:.9g}")  # 3.25e-06 m is 3.25 um
    except ValueError:
        return None
