"""Sections of a plan, and of a run if there was one, as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.arrays import SLICE_NAMES
from ..core.units import format_bytes

MOST_CUTS = 150
"""Cuts between blocks that are drawn: with more the lines would lie side by side on a phone."""
PLACES = {
    "scan": "the scan",
    "device": "the device",
    "memory": "host memory",
    "scratch file": "a scratch file",
    "result": "the result",
    "nothing": "nothing is kept",
}
BOUNDS = {
    "read": ("reading", "the disk or its decompression set the pace"),
    "link in": ("the link in", "copies to the device set the pace"),
    "compute": ("computing", "the methods set the pace"),
    "link out": ("the link out", "copies from the device set the pace"),
    "write": ("writing", "the disk of the results set the pace"),
    "overhead": ("overhead", "no stage was at work for more than half of the time"),
    "pipeline stalls": ("pipeline stalls", "stages waited for each other, as with few blocks"),
}
"""What bounded a section, in words, and what that means."""
STAGES = {"in": "link in", "out": "link out"}
"""Stages whose names in a report are too short to be understood alone."""


@dataclass(frozen=True, slots=True)
class SectionView:
    """One section, ready to be shown."""

    number: int
    """From 1."""
    plan: Mapping[str, Any]
    """The section of the plan."""
    run: Mapping[str, Any] | None
    """The section of the report; None if it was not run."""
    slices: str
    """Its slices, such as "181 projections"."""
    origin: str
    """Where its data come from."""
    destination: str
    """Where its output goes."""
    cuts: tuple[float, ...]
    """Cuts between its blocks, as shares of all slices; none if there are too many to draw."""
    has_more_cuts: bool
    """Whether there are too many."""
    blocks: str
    """Its blocks in words."""
    bound: tuple[str, str] | None
    """What bounded it, and what that means."""


def section_views(
    plan: Mapping[str, Any], report: Mapping[str, Any] | None = None
) -> list[SectionView]:
    """Sections of a plan, with those of the report of its run beside them."""
    sections = plan["sections"]
    ran = [None] * len(sections) if report is None else report["sections"]
    kept = [each["kept_bytes"] for each in sections]
    return [
        _section_view(number, planned, run, before)
        for number, (planned, run, before) in enumerate(
            zip(sections, ran, [0, *kept[:-1]], strict=True), start=1
        )
    ]


def _section_view(
    number: int, planned: Mapping[str, Any], run: Mapping[str, Any] | None, before_bytes: int
) -> SectionView:
    """One section; `before_bytes` of what the one before it made are in host memory."""
    n_slices = planned["n_slices"]
    sizes = [] if run is None else [(use["first_slice"], use["block"]) for use in run["blocks"]]
    sizes = sizes or [(0, planned["block"])]
    starts = _starts(sizes, n_slices)
    cuts = [start / n_slices for start in starts[1:]] if planned["on_blocks"] else []
    name = SLICE_NAMES[planned["slice_dim"]]
    bound = None if run is None else run["bound_by"]
    in_memory = f" ({format_bytes(before_bytes)} of it in memory)" if before_bytes else ""
    return SectionView(
        number=number,
        plan=planned,
        run=run,
        slices=_counted(n_slices, name),
        origin=PLACES.get(planned["origin"], planned["origin"]) + in_memory,
        destination=PLACES.get(planned["destination"], planned["destination"]),
        cuts=tuple(cuts) if len(cuts) <= MOST_CUTS else (),
        has_more_cuts=len(cuts) > MOST_CUTS,
        blocks=_blocks(planned, name, sizes, len(starts)),
        bound=None if bound is None else BOUNDS.get(bound, (bound, "")),
    )


def _starts(sizes: Sequence[tuple[int, int]], n_slices: int) -> list[int]:
    """First slice of each block."""
    ends = [first for first, _ in sizes[1:]] + [n_slices]
    found: list[int] = []
    for (first, block), end in zip(sizes, ends, strict=True):
        found += range(first, end, block)
    return found


def _blocks(
    planned: Mapping[str, Any], name: str, sizes: Sequence[tuple[int, int]], n_blocks: int
) -> str:
    if not planned["on_blocks"]:
        return f"a few {name}s alone, for its side results"
    text = f"{_counted(n_blocks, 'block')} of {sizes[0][1]}"
    for first, block in sizes[1:]:
        text += f", {block} from {name} {first} on"
    before, after = planned["halo"]
    return f"{text}, halo {before}+{after}" if before or after else text


def plain_name(method: str) -> str:
    """Name of a method without its module."""
    return method.rsplit(".", 1)[-1]


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
