"""Describe a scan without a pipeline: `describe`."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.angles import angle_table
from ..core.units import format_bytes
from ..io import Source, open_source
from ..io.scans.facts import Stack, StoredFacts
from .scan_and_output import facts_of, likely_layout

_SHOWN = 6
"""Most gaps, and most other 3D data sets, to list."""
_KINDS = {0: "projections", 1: "flats", 2: "darks", 3: "invalid", -1: "for alignment"}


@dataclass(frozen=True, slots=True)
class Angles:
    """Rotation angles of a scan, in degrees."""

    n_angles: int
    """Number of angles."""
    first: float
    """Angle of the first projection."""
    last: float
    """Angle of the last projection."""
    step: float
    """Typical step between neighbouring angles."""
    order: str
    """ "increasing", "decreasing" or "in no order"."""
    gaps: tuple[tuple[int, float], ...]
    """Number of the projection after each gap, and the step there."""


@dataclass(frozen=True, slots=True)
class ScanDescription:
    """Description of a scan: `maxslices.describe`, `maxslices info`."""

    name: str
    """File and data set."""
    shape: tuple[int, ...]
    """Projections: (angles, detector_y, detector_x)."""
    dtype: str
    """Dtype of the projections."""
    n_flats: int | None
    """Number of flats, if there are any."""
    n_darks: int | None
    """Number of darks, if there are any."""
    angles: Angles | None
    """Rotation angles, if they are stored."""
    stored: StoredFacts | None
    """Facts that an HDF5 file stores next to the frames."""
    is_guess: bool = False
    """Whether the layout is unknown, and the parts were guessed from shapes and names."""

    def to_dict(self) -> dict[str, Any]:
        """Convert the description to plain types, ready for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [self.name]
        if self.is_guess:
            lines.append(
                "  layout        unknown: the paths below are guessed from shapes and names"
            )
        n_bytes = int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize
        array = f"{' x '.join(map(str, self.shape))} {self.dtype}, {format_bytes(n_bytes)}"
        if self.stored is not None and self.stored.is_volume:
            lines.append(f"  volume        {array} (z x y x x): a reconstruction, not a scan")
        else:
            lines.append(f"  projections   {array} (angles x rows x columns)")
            lines.append(f"  flats, darks  {self.n_flats or 'none'}, {self.n_darks or 'none'}")
            lines += _angle_lines(self.angles)
        if self.stored is not None:
            lines += _stored_lines(self.stored)
        return "\n".join(lines)


def describe(scan: str | os.PathLike[str] | NDArray[Any] | Source) -> ScanDescription:
    """Describe a scan.

    Parameters
    ----------
    scan : path, ndarray, ArrayScan or Source
        A scan, as for `maxslices.run`. In an HDF5 file of an unknown layout the parts are guessed,
        as ``maxslices try`` does.

    Returns
    -------
    ScanDescription
        The description. Printed, it is readable text.

    Raises
    ------
    SourceError
        If it cannot be read or has no scan. The error lists the 3D data sets of the file.
    """
    source = open_source(scan, guess=True)
    try:
        spec, flats, darks = source.spec, source.flats, source.darks
        return ScanDescription(
            source.name,
            spec.shape,
            str(spec.dtype),
            None if flats is None else flats.shape[0],
            None if darks is None else darks.shape[0],
            None if source.angles is None else _describe_angles(source.angles),
            facts_of(source),
            is_guess=likely_layout(source) is not None,
        )
    finally:
        if source is not scan:
            source.close()


def _describe_angles(radians: NDArray[np.float32]) -> Angles:
    table = angle_table(radians)
    first, last = float(table.degrees[0]), float(table.degrees[-1])
    order = "in no order"
    gaps: tuple[tuple[int, float], ...] = ()
    if table.in_order:
        order = "increasing" if table.direction > 0 else "decreasing"
        gaps = tuple((after, table.direction * degrees) for _, after, degrees in table.gaps)
    return Angles(len(table.degrees), first, last, table.step, order, gaps)


def _angle_lines(angles: Angles | None) -> list[str]:
    if angles is None:
        return ["  angles        none"]
    lines = [
        f"  angles        {angles.n_angles}, {angles.first:.5g} to {angles.last:.5g} degrees, "
        f"steps of {angles.step:.4g}, {angles.order}"
    ]
    for number, step in angles.gaps[:_SHOWN]:
        lines.append(f"                a gap of {step:.4g} degrees before projection {number}")
    if len(angles.gaps) > _SHOWN:
        lines.append(f"                and {len(angles.gaps) - _SHOWN} gaps more")
    return lines


def _stored_lines(stored: StoredFacts) -> list[str]:
    lines = [
        f"  {'' if number else 'paths':<13} {part}: {where}"
        for number, (part, where) in enumerate(stored.layout.parts.items())
    ]
    chunks = "in one piece" if stored.chunks is None else f"in chunks of {stored.chunks}"
    packing = f", {stored.compression}" if stored.compression else ", not compressed"
    size = format_bytes(stored.stored_bytes) if stored.stored_bytes else "in other files"
    lines.append(f"  stored        {size}, {chunks}{packing}")
    if stored.frame_kinds:
        counts = (f"{n} {_KINDS.get(k, f'of kind {k}')}" for k, n in stored.frame_kinds.items())
        lines.append(f"  frames        {', '.join(counts)}")
    lines += [f"  {fact.subject:<13} {fact}  ({fact.where})" for fact in stored.values]
    if (pixel := stored.pixel_size) is not None:
        lines.append(f"  pixel size    {pixel.row_um:g} x {pixel.column_um:g} um  ({pixel.where})")
    lines += [f"  not applied   {fact.text}" for fact in stored.unused]
    if stored.pixel_size_note:
        lines.append(f"  pixel size    {stored.pixel_size_note}")
    if stored.angle_note:
        lines.append(f"  angles        {stored.angle_note}")
    lines += _stack_lines(stored.stacks)
    if not stored.is_complete:
        lines.append("  the file has more objects than were searched")
    return lines


def _stack_lines(stacks: tuple[Stack, ...]) -> list[str]:
    lines = []
    for stack in stacks[:_SHOWN]:
        dims = " x ".join(map(str, stack.shape))
        lines.append(f"  other 3D data {stack.where}, {dims} {stack.dtype}")
    if len(stacks) > _SHOWN:
        lines.append(f"  and {len(stacks) - _SHOWN} other 3D data sets")
    return lines
