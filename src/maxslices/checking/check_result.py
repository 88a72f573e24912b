"""What a check found: figures, verdict and text, and the error that carries them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..core.allocators import Device
from ..core.units import format_bytes
from ..measure import Alive, Place
from ..trial.trial import THE_CALL, THE_INPUT, is_call

LOWER, UPPER = 0.80, 1.00
"""Default bounds of estimated slices over slices that were run: httomo's tests have the same."""
WHOLE_SLICES_DECIDE = 50
"""From this many slices on whole slices are compared: one is at most 2 %. Below, one slice is much
(33 % of 3), and fractions are: how far the peak lies between the estimates of n and n + 1."""

Verdict = Literal[
    "ok",
    "WRONG OUTPUT",
    "CHANGES INPUT",
    "UNDERESTIMATE",
    "OVERESTIMATE",
    "NOT SEEN",
    "KEEPS MEMORY",
]
_MEANING = {
    "WRONG OUTPUT": "a run would stop",
    "CHANGES INPUT": "a run would copy every block",
    "UNDERESTIMATE": "would run out of memory",
    "OVERESTIMATE": "wastes memory",
    "NOT SEEN": "memory that no allocator accounts for",
    "KEEPS MEMORY": "each call leaves some behind",
}
_MAX_ROWS = 12
"""Allocations listed one by one; more are summed up, so that the table fits a screen."""
_MAX_CODE = 60
"""Characters of a line of code in the table."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A method's estimate beside what was measured."""

    method: str
    """Full name."""
    shape: tuple[int, int, int]
    """Input that was run: axes (angles, detector_y, detector_x)."""
    dtype: str
    """Input dtype."""
    parameters: Mapping[str, Any]
    """Parameters that were given."""
    slice_dim: int
    """Axis of the slices."""
    device: Device
    """Where it ran."""
    slices: int
    """Slices that were run."""
    estimated_slices: int
    """Answer of the estimator with the measured peak as the memory available."""
    fraction: float
    """The same with the part of a slice that rounding down takes away."""
    peak_bytes: int
    """Measured peak: input, output and what earlier calls left in caches included."""
    estimated_bytes: int
    """Estimate for this many slices."""
    lower: float
    """Least `ratio` allowed."""
    upper: float
    """Largest `ratio` allowed."""
    resolution_bytes: int = 0
    """Differences below this are no finding: small objects of Python's own."""
    kept_bytes: int = 0
    """Bytes that each further call leaves behind."""
    changes_input: bool = False
    """Whether the method modifies its input."""
    wrong_output: str = ""
    """How the output differs from what the method declares; empty if it does not."""
    missing: tuple[str, ...] = ()
    """Arrays alive at the peak that a ledger lacks, by name and line, the largest first."""
    unseen: tuple[str, ...] = ()
    """Memory that the meters could not attribute."""
    notes: tuple[str, ...] = ()
    """Further remarks."""
    where: Place | None = None
    """Line that reached the peak; None unless traced."""
    alive: tuple[Alive, ...] = field(default=())
    """Allocations alive at the peak, largest first; empty unless traced."""

    @property
    def ratio(self) -> float:
        """Estimated slices over slices run: above 1, the estimator promises what does not fit.

        Where the cost does not change between the slices run and the answer, they are the
        same answer, and the ratio is 1.
        """
        answer = self.fraction if self.slices < WHOLE_SLICES_DECIDE else self.estimated_slices
        if answer > self.slices and self.peak_bytes <= self.estimated_bytes + self.resolution_bytes:
            return 1.0
        return answer / self.slices

    @property
    def verdict(self) -> Verdict:
        """The worst fault, or "ok"."""
        if self.wrong_output:
            return "WRONG OUTPUT"
        if self.changes_input:
            return "CHANGES INPUT"
        if self.kept_bytes:
            return "KEEPS MEMORY"
        if self.ratio > self.upper:
            return "UNDERESTIMATE"
        if self.unseen:
            return "NOT SEEN"
        too_many_bytes = self.estimated_bytes - self.peak_bytes
        if self.ratio < self.lower and too_many_bytes > self.resolution_bytes:
            return "OVERESTIMATE"
        return "ok"

    @property
    def ok(self) -> bool:
        """True if the output is as declared, the estimate within bounds and all memory seen."""
        return self.verdict == "ok"

    @property
    def headline(self) -> str:
        """The verdict in one line, with both numbers."""
        allowed = f"allowed {self.lower:.2f} to {self.upper:.2f}"
        if self.verdict == "ok":
            return (
                f"ok: {self.method}: estimated {_slices(self)}, ran {self.slices} "
                f"({self.ratio:.3f}, {allowed})"
            )
        start = f"{self.verdict} ({_MEANING[self.verdict]}): {self.method}"
        if self.verdict == "WRONG OUTPUT":
            return f"{start} {self.wrong_output}"
        if self.verdict == "CHANGES INPUT":
            return (
                f"{start} modifies its input: work on a copy, and count input and result in the "
                "estimator"
            )
        if self.verdict == "NOT SEEN":
            return f"{start}: {'; '.join(self.unseen)}"
        if self.verdict == "KEEPS MEMORY":
            return (
                f"{start}: {format_bytes(self.kept_bytes)} stay after every call, of a peak of "
                f"{format_bytes(self.peak_bytes)}"
            )
        where, code = ("", "") if self.where is None else _line_of(self.where)
        peak_at = ": ".join(filter(None, (where and f" at {where}", where and code[:_MAX_CODE])))
        return (
            f"{start}: estimated {_slices(self)} slices for the memory that {self.slices} slices "
            f"took ({self.ratio:.3f}, {allowed}); {format_bytes(self.estimated_bytes)} in place of "
            f"{format_bytes(self.peak_bytes)}{peak_at}{self._missing}"
        )

    @property
    def _missing(self) -> str:
        """What the ledger of an estimate that is too low lacks."""
        if self.verdict != "UNDERESTIMATE" or not self.missing:
            return ""
        return f"; not in your ledger: {', '.join(self.missing)}"

    def __repr__(self) -> str:
        return f"<CheckResult: {self.headline}>"

    def _repr_html_(self) -> str:
        """The check for a notebook."""
        from ..report_page.page import check_fragment

        return check_fragment(
            self.headline,
            self.ok,
            self.estimated_bytes,
            self.peak_bytes,
            self._facts(),
            _alive_cells(self),
        )

    def _facts(self) -> list[tuple[str, str]]:
        """Names and texts of the table."""
        shape = "x".join(map(str, self.shape))
        parameters = ", ".join(f"{k}={v!r}" for k, v in self.parameters.items())
        rows = [
            ("input", f"{shape} {self.dtype}, slices along dim {self.slice_dim}, on {self.device}"),
            ("parameters", parameters or "defaults"),
            ("measured", f"{format_bytes(self.peak_bytes)} ({self.peak_bytes:,} bytes)"),
            (
                "estimated",
                f"{format_bytes(self.estimated_bytes)} ({self.estimated_bytes:,} bytes) for "
                f"{self.slices} slice{'s'[: self.slices != 1]}: "
                f"{self.estimated_bytes / max(1, self.peak_bytes):.3f} of the measured",
            ),
        ]
        if self.where is not None:
            where, code = _line_of(self.where)
            rows.append(("peak at", f"{self.where}  {code}".rstrip() if where else code))
        return [*rows, *(("note", note) for note in self.notes)]

    def __str__(self) -> str:
        """Write the headline and the table."""
        lines = [self.headline, *(f"  {name:<11} {text}" for name, text in self._facts())]
        if self.alive:
            lines += ["  alive at the peak", *_alive_rows(self)]
        return "\n".join(lines)


class EstimateError(AssertionError):
    """A check failed; `result` has the figures.

    Parameters
    ----------
    result : CheckResult
        Printed as the message.
    """

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return str(self.result)


def _alive_rows(result: CheckResult) -> list[str]:
    cells = _alive_cells(result)
    where_width = max(len(cell[2]) for cell in cells)
    code_width = min(_MAX_CODE, max(len(cell[3]) for cell in cells))
    return [
        f"  {size:>9} {part:>5}  {where:<{where_width}}  {code[:_MAX_CODE]:<{code_width}}  "
        f"{what}".rstrip()
        for size, part, where, code, what in cells
    ]


def _alive_cells(result: CheckResult) -> list[tuple[str, str, str, str, str]]:
    """Size, share, place, code and kind of each allocation at the peak; the smaller ones as one."""
    rows = result.alive
    shown, rest = rows[:_MAX_ROWS], rows[_MAX_ROWS:]
    total = sum(row.n_bytes for row in rows) or 1
    cells = []
    for row in shown:
        where, code = _line_of(row.where)
        cells.append(
            (format_bytes(row.n_bytes), f"{row.n_bytes / total:.0%}", where, code, row.what)
        )
    if rest:
        n_bytes = sum(row.n_bytes for row in rest)
        cells.append((format_bytes(n_bytes), f"{n_bytes / total:.0%}", "", f"{len(rest)} more", ""))
    return cells


def _line_of(place: Place) -> tuple[str, str]:
    """File and line of a place, and its code; no line, and what it is, of what has none."""
    if place == THE_INPUT:
        return "", "the input"
    if is_call(place):
        return "", THE_CALL
    return str(place).split(" in ")[0], place.code


def _slices(result: CheckResult) -> str:
    if result.slices < WHOLE_SLICES_DECIDE and result.estimated_slices < 1000:
        return f"{result.fraction:.2f}"
    return str(result.estimated_slices)
