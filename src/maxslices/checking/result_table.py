"""Results as JSON, and the table at the end of a test run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..core.units import format_bytes
from .check_result import CheckResult

_ORDER = (
    "WRONG OUTPUT",
    "CHANGES INPUT",
    "UNDERESTIMATE",
    "KEEPS MEMORY",
    "NOT SEEN",
    "OVERESTIMATE",
    "ok",
)


def to_dict(result: CheckResult) -> dict[str, Any]:
    """Figures and verdict as values that JSON knows."""
    return {
        "method": result.method,
        "shape": list(result.shape),
        "dtype": result.dtype,
        "parameters": {k: v if _is_plain(v) else repr(v) for k, v in result.parameters.items()},
        "slice_dim": result.slice_dim,
        "device": result.device,
        "slices": result.slices,
        "estimated_slices": result.estimated_slices,
        "ratio": round(result.ratio, 6),
        "peak_bytes": result.peak_bytes,
        "estimated_bytes": result.estimated_bytes,
        "lower": result.lower,
        "upper": result.upper,
        "verdict": result.verdict,
        "message": result.headline,
        "notes": list(result.notes),
        "alive": [
            {
                "bytes": row.n_bytes,
                "where": str(row.where),
                "code": row.where.code,
                "what": row.what,
            }
            for row in result.alive
        ],
    }


def summary_lines(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of the table: the worst case of each method, the worst method first."""
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
    """Sort key: what would run out of memory first, then by distance from a true estimate."""
    return _ORDER.index(result["verdict"]), -abs(result["ratio"] - 1)


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
