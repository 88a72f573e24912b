"""What a check prints: one line that says what is wrong, and a table below."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..model.units import format_bytes

if TYPE_CHECKING:
    from ..measure import Place
    from .check_result import CheckResult

_MEANING = {
    "UNDERESTIMATE": "would run out of memory",
    "OVERESTIMATE": "wastes memory",
    "NOT SEEN": "memory that no allocator accounts for",
    "KEEPS MEMORY": "each call leaves some behind",
}
_ROWS = 12


def headline(result: CheckResult) -> str:
    """Return what is wrong in one line, with both numbers."""
    allowed = f"allowed {result.lower:.2f} to {result.upper:.2f}"
    if result.verdict == "ok":
        return (
            f"ok: {result.method}: estimated {_slices(result)}, ran {result.slices} "
            f"({result.ratio:.3f}, {allowed})"
        )
    start = f"{result.verdict} ({_MEANING[result.verdict]}): {result.method}: "
    if result.verdict == "NOT SEEN":
        return start + "; ".join(result.unseen)
    if result.verdict == "KEEPS MEMORY":
        return start + (
            f"{format_bytes(result.kept_bytes)} stay after every call, of a peak of "
            f"{format_bytes(result.peak_bytes)}"
        )
    return start + (
        f"estimated {_slices(result)} slices for the memory that {result.slices} slices took "
        f"({result.ratio:.3f}, {allowed}){_peak_at(result)}"
    )


def _peak_at(result: CheckResult) -> str:
    return "" if result.where is None else f"; peak at {_place(result.where)}"


def _place(place: Place) -> str:
    """Return file and line alone."""
    return str(place).split(" in ")[0]


def check_message(result: CheckResult) -> str:
    """Return the headline and the table."""
    shape = "x".join(map(str, result.shape))
    parameters = ", ".join(f"{k}={v!r}" for k, v in result.parameters.items())
    rows = [
        (
            "input",
            f"{shape} {result.dtype}, slices along dim {result.slice_dim}, on {result.device}",
        ),
        ("parameters", parameters or "defaults"),
        ("measured", f"{format_bytes(result.peak_bytes)} ({result.peak_bytes:,} bytes)"),
        (
            "estimated",
            f"{format_bytes(result.estimated_bytes)} ({result.estimated_bytes:,} bytes) for "
            f"{result.slices} slice{'s'[: result.slices != 1]}: {_times(result)}",
        ),
    ]
    if result.where is not None:
        rows.append(("peak at", f"{result.where}  {result.where.code}"))
    rows += [("note", note) for note in result.notes]
    lines = [headline(result), *(f"  {name:<11} {text}" for name, text in rows)]
    if result.alive:
        lines += ["  alive at the peak", *_alive_rows(result)]
    return "\n".join(lines)


def _alive_rows(result: CheckResult) -> list[str]:
    input_bytes = math.prod(result.shape) * np.dtype(result.dtype).itemsize
    rows = [r for r in result.alive if not from_harness(r.where) or r.n_bytes >= input_bytes]
    shown, rest = rows[:_ROWS], rows[_ROWS:]
    total = sum(row.n_bytes for row in rows) or 1
    cells = []
    for row in shown:
        given = from_harness(row.where)
        where = "" if given else _place(row.where)
        code = "the input" if given else row.where.code
        cells.append(
            (format_bytes(row.n_bytes), f"{row.n_bytes / total:.0%}", where, code, row.what)
        )
    if rest:
        n_bytes = sum(row.n_bytes for row in rest)
        cells.append((format_bytes(n_bytes), f"{n_bytes / total:.0%}", "", f"{len(rest)} more", ""))
    wide = max(len(cell[2]) for cell in cells)
    code_wide = min(60, max(len(cell[3]) for cell in cells))
    return [
        f"  {size:>9} {part:>5}  {where:<{wide}}  {code[:60]:<{code_wide}}  {what}".rstrip()
        for size, part, where, code, what in cells
    ]


def _slices(result: CheckResult) -> str:
    if result.slices < 50 and result.estimated_slices < 1000:
        return f"{result.fraction:.2f}"
    return str(result.estimated_slices)


def _times(result: CheckResult) -> str:
    return f"{result.estimated_bytes / max(1, result.peak_bytes):.3f} of the measured"


_TRIAL = __file__.replace("check_report.py", "measured_call.py")


def from_harness(place: Place) -> bool:
    """Tell whether memory was allocated by the harness: it is the input."""
    return place.filename == _TRIAL
