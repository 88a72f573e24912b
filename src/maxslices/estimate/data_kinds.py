"""Methods whose memory depends on the values of the data: find the kind that takes most."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import EstimatorError
from ..model.units import format_bytes
from .bench import Bench, Rung

SAME = 0.01
"""Peaks with other data that differ by less than 1 % are the same; chosen, not measured."""


def with_other_data(
    bench: Bench, rung: Rung, run: Callable[[int], Rung | None], noise_bytes: int
) -> tuple[Rung | None, list[str]]:
    """Repeat a rung with other values; if its memory changes, go on with those that take most.

    Parameters
    ----------
    bench : Bench
        Runs the method; its `kind` is set to that of the data to go on with.
    rung : Rung
        The measurement with the usual data.
    run : callable
        Measures a number of slices; None if memory runs out.
    noise_bytes : int
        Differences below this are ignored.

    Returns
    -------
    other : Rung or None
        The same slices with the data that take most; None if memory runs out with them.
    notes : list of str
        Findings for the user.

    Raises
    ------
    EstimatorError
        If the method raises for values with another histogram over the same range.
    """
    usual, n = bench.kind, rung.n_slices
    found = {usual: rung}
    for kind in ("dark", "highest", "lowest"):
        bench.kind = kind
        try:
            other = run(n)
        except EstimatorError:
            if kind == "dark":
                raise
            continue  # a method may refuse data whose values are all equal
        if other is None:
            return None, [
                f"its memory depends on the data: it ran out with {n} slices of another kind "
                f"({kind}), with which it is estimated"
            ]
        if kind == "dark" and _is_same(other, rung, noise_bytes):
            bench.kind = usual
            return other, []
        found[kind] = other
    bench.kind = max(found, key=lambda kind: found[kind].n_bytes)
    sizes = sorted(each.n_bytes for each in found.values())
    return found[bench.kind], [
        f"its memory depends on the data: {format_bytes(sizes[0])} to {format_bytes(sizes[-1])} "
        f"for {n} slices; estimated with data of the kind that took most ({bench.kind})"
    ]


def _is_same(other: Rung, first: Rung, noise_bytes: int) -> bool:
    """True if two calls take the same, apart from what the first one cached."""
    cached = max(0, first.left_bytes - other.left_bytes)
    gap = abs(first.n_bytes - cached - other.n_bytes)
    return gap <= max(noise_bytes, SAME * other.n_bytes)
