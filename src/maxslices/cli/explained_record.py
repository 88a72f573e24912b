"""Records that come with a package, in words: formulas in the detector's dims and the slices."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..checking.explained_peak import place_of
from ..estimate.size_model import SizedTerm, SizeModel, SizeRecord

_TYPICAL_SLICES = 32
"""Slices for which the highest moment is shown: a block of a plan."""


def explained_record(record: SizeRecord) -> list[str]:
    """Lines of text: where and how it was measured, and what it says for other sizes."""
    question, place = record.question, record.place
    unit = "sinograms" if question.slice_dim else "projections"
    versions = ", ".join(f"{name} {version}" for name, version in place.libraries.items())
    date = time.strftime("%Y-%m-%d", time.gmtime(record.time_s))
    given = _named({n: v for n, v in question.parameters.items() if v is not None})
    sizes = ", ".join(f"{rows}x{columns}" for rows, columns in record.dims)
    lines = [
        f"{question.method}  {unit} of {question.dtype}  on {place.device}  (comes with it)",
        f"  measured    {date}, {question.package}; {versions}",
        f"  at          {sizes}",
        f"  parameters  {given or 'none'}",
    ]
    if record.same:
        tried = {name: " and ".join(map(str, values)) for name, values in record.same.items()}
        lines.append(f"  same with   {_named(tried)}")
    if record.formulas is not None:
        lines += [
            f"  formulas    exact at {len(record.formulas.recorded)} sizes; the peak of "
            f"{_TYPICAL_SLICES} slices is",
            *(f"              {text}" for text in _terms(record.formulas)),
        ]
    own = ", ".join("{}x{}".format(*size.dims) for size in record.sizes if size.peaks)
    return [*lines, f"  only at     {own}"] if own else lines


def _named(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _terms(model: SizeModel) -> list[str]:
    """Allocations alive at the peak, by formulas in rows, columns and n."""
    at = model.at(model.recorded[0])
    found = []
    for i in model.moments[at.highest(_TYPICAL_SLICES)]:
        term = model.terms[i][0]
        number = "" if str(term.number) == "1" else f"({term.number}) arrays of "
        found.append(f"{number}{size_text(model.terms[i])} bytes  {place_of(at, term.path)}")
    return found


def size_text(sized: SizedTerm) -> str:
    """Bytes of one of a line's arrays, as a formula in rows, columns and n."""
    term, start, step = sized[0], str(sized[1]), str(sized[2])
    if step == "0":
        return start
    count = term.size.counted.replace("k", str(term.size.k))
    grown = f"({step}) * {count}" if " + " in step else f"{step} * {count}"
    return grown if start == "0" else f"{start} + {grown}"
