"""Records that come with a package, in words: formulas in the detector's dims and the slices."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..checking.explained_peak import place_of
from ..estimate.any_size import SizeClass
from ..estimate.size_bound import SizeBound
from ..estimate.size_model import SizedTerm, SizeModel
from ..estimate.size_record import SizeRecord

_PARITY = {None: "", 0: "even", 1: "odd"}
_TYPICAL_SLICES = 32
"""Slices for which the highest moment is shown: a block of a plan."""


def explained_record(record: SizeRecord) -> list[str]:
    """Lines of text: where and how it was measured, and what it says for other sizes."""
    question, place = record.question, record.place
    unit = "sinograms" if question.slice_dim else "projections"
    versions = ", ".join(f"{name} {version}" for name, version in place.libraries.items())
    date = time.strftime("%Y-%m-%d", time.gmtime(record.time_s))
    given = _named({n: v for n, v in question.parameters.items() if v is not None})
    sizes = ", ".join(f"{rows}x{columns}" for rows, columns in record.measured)
    lines = [
        f"{question.method}  {unit} of {question.dtype}  on {place.device}  (comes with it)",
        f"  measured    {date}, {question.package}; {versions}",
        f"  at          {sizes}",
        f"  parameters  {given or 'none'}",
    ]
    if record.same:
        tried = {name: " and ".join(map(str, values)) for name, values in record.same.items()}
        lines.append(f"  same with   {_named(tried)}")
    for each in record.classes:
        lines += [f"  {line}" for line in _class_lines(each)]
    if record.own:
        own = ", ".join(f"{rows}x{columns}" for rows, columns in record.own)
        lines.append(f"  only at     {own}")
    return lines


def _named(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _class_lines(each: SizeClass) -> list[str]:
    """One class of sizes: how near it is, and its terms."""
    parts = zip(each.parity, ("rows", "columns"), strict=True)
    dims = " and ".join(f"{_PARITY[p]} {name}" for p, name in parts if p is not None)
    of = f" with {dims}" if dims else ""
    n_sizes = f"{len(each.peaks.recorded)} sizes{of}"
    if isinstance(each.peaks, SizeBound):
        bounds = (" + ".join(moment.products) for moment in each.peaks.moments)
        return [f"bound       {each.peaks.above:.2%} above {n_sizes} at most: a sum of",
                *(f"            {text}" for text in dict.fromkeys(bounds))]  # fmt: skip
    return [f"formulas    exact at {n_sizes}; the peak of {_TYPICAL_SLICES} slices is",
            *(f"            {text}" for text in _terms(each.peaks))]  # fmt: skip


def _terms(model: SizeModel) -> list[str]:
    """Allocations alive at the peak, by formulas in rows, columns and n."""
    at = model.at(model.recorded[0])
    found = []
    for term in model.moments[at.highest(_TYPICAL_SLICES)]:
        number = "" if str(term.number) == "1" else f"({term.number}) arrays of "
        found.append(f"{number}{size_text(term)} bytes  {place_of(at, term.path)}")
    return found


def size_text(term: SizedTerm) -> str:
    """Bytes of one of a line's arrays, as a formula in rows, columns and n."""
    start, step = str(term.start), str(term.step)
    if step == "0":
        return start
    count = term.count.replace("k", str(term.k))
    grown = f"({step}) * {count}" if " + " in step else f"{step} * {count}"
    return grown if start == "0" else f"{start} + {grown}"
