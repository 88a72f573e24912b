"""Result of a check: figures, verdict, text, JSON, the error with them, and the summary table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..core.allocators import Device
from ..core.units import format_bytes
from ..measure import Alive, CallSite
from ..measure.allocation_sequence import INPUT
from ..trial.trial import THE_CALL, is_call

LOWER, UPPER = 0.80, 1.00
"""Default bounds of estimated slices over slices that were run, as in httomo's tests."""
WHOLE_SLICES_DECIDE = 50
"""Least number of slices for which whole slices are compared, since one slice is then at most 2 %.
Of 3 slices, one is 33 %, so fractions of a slice are compared: the position of the peak between the
estimates for n and n + 1 slices."""

Verdict = Literal[
    "WRONG OUTPUT",
    "CHANGES INPUT",
    "UNDERESTIMATE",
    "KEEPS MEMORY",
    "NOT SEEN",
    "OVERESTIMATE",
    "ok",
]
"""Outcome of a check, in order from the worst."""
_MEANING = {
    "WRONG OUTPUT": "a run would stop",
    "CHANGES INPUT": "a run would copy every block",
    "UNDERESTIMATE": "would run out of memory",
    "OVERESTIMATE": "wastes memory",
    "NOT SEEN": "memory that no allocator accounts for",
    "KEEPS MEMORY": "each call retains some",
}
MAX_ROWS = 12
"""Allocations listed one by one. The others are summed in one row, to fit the table on a screen."""
MAX_CODE = 60
"""Characters of a line of code in the table."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Estimate and measured peak of a method."""

    method: str
    """Full name."""
    shape: tuple[int, int, int]
    """Input that was run: axes (angles, detector_y, detector_x)."""
    dtype: str
    """Input dtype."""
    parameters: Mapping[str, Any]
    """Parameters of the call."""
    slice_dim: int
    """Axis of the slices."""
    device: Device
    """Kind of the device on which the method ran."""
    slices: int
    """Slices that were run."""
    estimated_slices: int
    """Estimated slices for the measured peak as available memory."""
    fraction: float
    """Estimated slices before rounding down to an integer."""
    peak_bytes: int
    """Measured peak, with input, output and the memory that earlier calls left in caches."""
    estimated_bytes: int
    """Estimated bytes for the slices that were run."""
    lower: float
    """Smallest `ratio` allowed."""
    upper: float
    """Largest `ratio` allowed."""
    resolution_bytes: int = 0
    """Smaller differences are ignored, such as those of small Python objects."""
    kept_bytes: int = 0
    """Bytes that each further call retains."""
    changes_input: bool = False
    """Whether the method modifies its input."""
    wrong_output: str = ""
    """Difference of the output from the method's declarations, or "" if they agree."""
    missing: tuple[str, ...] = ()
    """Lines of arrays alive at the peak that are missing from the ledger, in order."""
    unseen: tuple[str, ...] = ()
    """Memory that the meters could not attribute."""
    notes: tuple[str, ...] = ()
    """Further remarks."""
    where: CallSite | None = None
    """Line that reached the peak, or None unless traced."""
    alive: tuple[Alive, ...] = field(default=())
    """Allocations alive at the peak, largest first, empty unless traced."""

    @property
    def ratio(self) -> float:
        """Estimated slices over slices run. Above 1, the estimate is for slices that do not fit.

        If the estimate is the same for both numbers of slices, the ratio is 1.
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
        """True if the output is as declared, the estimate is within bounds, and all memory seen."""
        return self.verdict == "ok"

    @property
    def fault(self) -> str:
        """The verdict with its meaning and the method, if it is not "ok"."""
        return "" if self.ok else f"{self.verdict} ({_MEANING[self.verdict]}): {self.method}"

    @property
    def headline(self) -> str:
        """The verdict in one line, with both numbers."""
        allowed = f"allowed {self.lower:.2f} to {self.upper:.2f}"
        if self.verdict == "ok":
            return (
                f"ok: {self.method}: estimated {_slices(self)}, ran {self.slices} "
                f"({self.ratio:.3f}, {allowed})"
            )
        start = self.fault
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
        peak_at = ": ".join(filter(None, (where and f" at {where}", where and _short(code))))
        return (
            f"{start}: estimated {_slices(self)} slices for the memory that {self.slices} slices "
            f"took ({self.ratio:.3f}, {allowed}); estimated {format_bytes(self.estimated_bytes)}, "
            f"measured {format_bytes(self.peak_bytes)}{peak_at}{self._missing}"
        )

    @property
    def _missing(self) -> str:
        """End of the headline that lists the arrays missing from the ledger, if it is too low."""
        if self.verdict != "UNDERESTIMATE" or not self.missing:
            return ""
        arrays = [
            text if n == 1 else f"{n} arrays of {text}" for text, n in Counter(self.missing).items()
        ]
        return f"; not in your ledger: {', '.join(arrays)}"

    def __repr__(self) -> str:
        return f"<CheckResult: {self.headline}>"

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
                f"{self.estimated_bytes / max(1, self.peak_bytes):.3f} of the measured peak",
            ),
        ]
        if self.where is not None:
            where, code = _line_of(self.where)
            rows.append(("peak at", f"{self.where}  {code}".rstrip() if where else code))
        return [*rows, *(("note", note) for note in self.notes)]

    def __str__(self) -> str:
        """Write the headline and the table."""
        lines = [self.headline, *(f"  {name:<11} {text}" for name, text in self._facts())]
        return "\n".join([*lines, *alive_rows(self.alive)])

    def to_dict(self) -> dict[str, Any]:
        """Figures and verdict as values that JSON knows."""
        return {
            "method": self.method,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "parameters": {k: v if _is_plain(v) else repr(v) for k, v in self.parameters.items()},
            "slice_dim": self.slice_dim,
            "device": self.device,
            "slices": self.slices,
            "estimated_slices": self.estimated_slices,
            "ratio": round(self.ratio, 6),
            "peak_bytes": self.peak_bytes,
            "estimated_bytes": self.estimated_bytes,
            "lower": self.lower,
            "upper": self.upper,
            "verdict": self.verdict,
            "message": self.headline,
            "notes": list(self.notes),
            "alive": [
                {"bytes": row.n_bytes, "where": str(row.where), "code": row.where.code}
                for row in self.alive
            ],
        }


class EstimateError(AssertionError):
    """A check failed. `result` has the figures.

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


def alive_rows(rows: Iterable[Alive]) -> list[str]:
    """Lines of a table: size, share, place and code of each allocation at the peak.

    The largest come first, and small ones are summed in one row. Empty without allocations.
    """
    rows = sorted(rows, key=lambda row: -row.n_bytes)
    if not rows:
        return []
    cells = [(row.n_bytes, *_line_of(row.where)) for row in rows[:MAX_ROWS]]
    if rest := rows[MAX_ROWS:]:
        cells.append((sum(row.n_bytes for row in rest), "", f"{len(rest)} more"))
    total = sum(row.n_bytes for row in rows) or 1
    width = max(len(where) for _, where, _ in cells)
    return [
        "  alive at the peak",
        *(
            f"  {format_bytes(n_bytes):>9} {n_bytes / total:>5.0%}  {where:<{width}}  "
            f"{_short(code)}".rstrip()
            for n_bytes, where, code in cells
        ),
    ]


def _line_of(place: CallSite) -> tuple[str, str]:
    """File and line of a call site, and its code. For input and call, "" and a name."""
    if place == INPUT:
        return "", "the input"
    if is_call(place):
        return "", THE_CALL
    return str(place).split(" in ")[0], place.code


def _short(code: str) -> str:
    """Code of at most `MAX_CODE` characters; an ellipsis marks a longer one."""
    return code if len(code) <= MAX_CODE else f"{code[: MAX_CODE - 3].rstrip()}..."


def _slices(result: CheckResult) -> str:
    if result.slices < WHOLE_SLICES_DECIDE and result.estimated_slices < 1000:
        return f"{result.fraction:.2f}"
    return str(result.estimated_slices)


def summary_lines(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of the table: the worst case of each method, in order from the worst method."""
    worst: dict[str, Mapping[str, Any]] = {}
    counts: dict[str, int] = {}
    for result in results:
        name = result["method"]
        counts[name] = counts.get(name, 0) + 1
        if name not in worst or _badness(result) < _badness(worst[name]):
            worst[name] = result
    if not worst:
        return []
    header = ("method", "cases", "slices", "estimate", "ratio", "peak", "verdict", "worst case")
    rows = [
        (
            name.rsplit(".", 1)[-1],
            str(counts[name]),
            str(result["slices"]),
            str(result["estimated_slices"]) if result["estimated_slices"] < 10**9 else "any",
            f"{result['ratio']:.3f}",
            format_bytes(result["peak_bytes"]),
            result["verdict"],
            _case(result),
        )
        for name, result in sorted(worst.items(), key=lambda item: _badness(item[1]))
    ]
    wide = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    left = {0, 6, 7}
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]


def _badness(result: Mapping[str, Any]) -> tuple[int, float]:
    """Sort key: the worst verdict first, then the largest distance from a correct estimate."""
    return get_args(Verdict).index(result["verdict"]), -abs(result["ratio"] - 1)


def _case(result: Mapping[str, Any]) -> str:
    parts = ["x".join(map(str, result["shape"])), result["dtype"], f"dim{result['slice_dim']}"]
    parts += [f"{name}={value}" for name, value in result["parameters"].items()]
    return " ".join([*parts, result["device"]])


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | float | str)
