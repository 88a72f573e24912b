"""Memory that depends on the values of the data: with which it is most."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import EstimatorError
from ..model.units import format_bytes
from .bench import Bench, Rung

_SAME = 0.01
"""Peaks that differ by less are the same."""


def with_other_data(
    bench: Bench, rung: Rung, run: Callable[[int], Rung | None], noise_bytes: int
) -> tuple[Rung | None, list[str]]:
    """Run a rung again with other values; where memory changes, keep to those that take most.

    Parameters
    ----------
    bench : Bench
        What is run; its `kind` is that of the data afterwards.
    rung : Rung
        What was measured with the usual data.
    run : callable
        Runs as many slices as it is given; None where the memory does not suffice.
    noise_bytes : int
        Differences below this mean nothing.

    Returns
    -------
    other : Rung or None
        The same slices with data that take most; None if memory does not suffice for them.
    notes : list of str
        What was noticed.

    Raises
    ------
    EstimatorError
        If the method cannot be run on data spread otherwise over the same range.
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
            continue  # all values the same may be what it cannot work with
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
    """Tell whether two calls take the same, save for what the first had to cache."""
    cached = max(0, first.left_bytes - other.left_bytes)
    gap = abs(first.n_bytes - cached - other.n_bytes)
    return gap <= max(noise_bytes, _SAME * other.n_bytes)
