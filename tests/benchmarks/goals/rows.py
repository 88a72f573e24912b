"""A figure, what it is held against, and the table of them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One figure."""

    part: str
    what: str
    figure: float
    unit: str
    target: float | None = None
    """What it is held against; None for a limit or another figure that others refer to."""
    better: Literal["less", "more"] = "less"
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Return figure over target."""
        return self.figure / self.target if self.target else None

    @property
    def passed(self) -> bool | None:
        """Tell whether the target is met; None where there is none."""
        if self.target is None:
            return None
        met = self.figure <= self.target if self.better == "less" else self.figure >= self.target
        return bool(met)


def shown(value: float | None, unit: str) -> str:
    """Write a figure with its unit in a column's width."""
    if value is None:
        return ""
    if unit == "B":
        return f"{value / 1e9:.3f} GB"
    if unit == "":
        return f"{value:.0f}"
    if abs(value) < 1e-2 and unit != "s":
        return f"{value:.1g} {unit}"
    digits = 4 if unit == "s" and value < 1 else 2
    return f"{value:.{digits}f} {unit}"


def table(rows: list[Row]) -> str:
    """Return all rows as Markdown."""
    lines = [
        "| part | what | figure | target | ratio | met |",
        "|---|---|--:|--:|--:|---|",
    ]
    for row in rows:
        sign = "" if row.target is None else {"less": "<= ", "more": ">= "}[row.better]
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        met = {None: "", True: "yes", False: "NO"}[row.passed]
        target = sign + shown(row.target, row.unit)
        what = row.what + (f" ({row.note})" if row.note else "")
        lines.append(
            f"| {row.part} | {what} | {shown(row.figure, row.unit)} | {target} | {ratio} | {met} |"
        )
    judged = [row for row in rows if row.passed is not None]
    met_rows = sum(bool(row.passed) for row in judged)
    return "\n".join([*lines, "", f"{met_rows} of {len(judged)} targets met"])


def short(text: str) -> str:
    """Return the end of a traceback, for a table."""
    return textwrap.shorten(text.strip().splitlines()[-1], 300)
