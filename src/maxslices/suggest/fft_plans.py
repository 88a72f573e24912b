"""FFT plans that CuPy makes during a call: their workspaces stay, and `Ledger.fft` counts them.

What cuFFT takes for a plan is no product of dims, and for many lengths it is nothing. So what is
allocated while a plan is made is left out of the sequence, and the plan's arguments are noted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..core.cufft import Kind
from ..measure import Place
from ..measure.source_lines import current_place
from .alloc_call import SizeFinder
from .line_names import is_own_call

_TYPES: dict[int, tuple[Kind, bool]] = {
    0x2A: ("r2c", True), 0x2C: ("c2r", True), 0x29: ("c2c", True),
    0x6A: ("r2c", False), 0x6C: ("c2r", False), 0x69: ("c2c", False),
}  # fmt: skip
"""Kind of cuFFT's types, and whether they are of single precision."""


@dataclass(frozen=True, slots=True)
class FftPlan:
    """One plan that was made."""

    start: int
    """Index of the first event while it was made."""
    stop: int
    """Index of the event after the last."""
    place: Place
    """Line that asked for it."""
    dims: tuple[int, ...]
    """Lengths of the axes transformed together, on the real side."""
    batch: int
    """Transforms made at once."""
    kind: Kind
    """Complex, real to complex or complex to real."""
    is_single: bool
    """Whether its precision is single."""


@contextmanager
def plans_noted(count_events: Callable[[], int]) -> Iterator[list[FftPlan]]:
    """Note the plans that a ``with`` block makes.

    Parameters
    ----------
    count_events : callable
        Number of events recorded so far.
    """
    cufft: Any = importlib.import_module("cupy.cuda.cufft")
    found: list[FftPlan] = []

    def noting(original: Any, read: Callable[..., tuple[tuple[int, ...], int, int]]) -> Any:
        class NotedPlan(original):  # type: ignore[misc]
            def __init__(self, *arguments: Any, **options: Any) -> None:
                start = count_events()
                super().__init__(*arguments, **options)
                dims, fft_type, batch = read(*arguments, **options)
                if fft_type in _TYPES:
                    place = current_place(sys._getframe(1))
                    kind, is_single = _TYPES[fft_type]
                    found.append(
                        FftPlan(start, count_events(), place, dims, batch, kind, is_single)
                    )

        return NotedPlan

    originals = {"Plan1d": cufft.Plan1d, "PlanNd": cufft.PlanNd}
    cufft.Plan1d = noting(cufft.Plan1d, _of_one_dim)
    cufft.PlanNd = noting(cufft.PlanNd, _of_dims)
    try:
        yield found
    finally:
        for name, original in originals.items():
            setattr(cufft, name, original)


def _of_one_dim(
    nx: int, fft_type: int, batch: int, **options: Any
) -> tuple[tuple[int, ...], int, int]:
    return (int(nx),), int(fft_type), int(batch)


def _of_dims(
    shape: Sequence[int],
    inembed: Any,
    istride: Any,
    idist: Any,
    onembed: Any,
    ostride: Any,
    odist: Any,
    fft_type: int,
    batch: int,
    *others: Any,
    **options: Any,
) -> tuple[tuple[int, ...], int, int]:
    return tuple(int(n) for n in shape), int(fft_type), int(batch)


def plan_lines(plans_of_runs: Sequence[Sequence[FftPlan]], finder: SizeFinder) -> list[str]:
    """Calls of `Ledger.fft` for plans that every run makes, the line of code above each.

    Where a line makes several, they are told apart by their order. What only some runs make (for
    the slices that remain after whole chunks) is left out.
    """
    by_site: list[dict[tuple[object, ...], FftPlan]] = []
    for plans in plans_of_runs:
        sites: dict[tuple[object, ...], FftPlan] = {}
        for plan in plans:
            site = (plan.place, len(plan.dims), plan.kind, plan.is_single)
            number = sum(key[:-1] == site for key in sites)
            sites[(*site, number)] = plan
        by_site.append(sites)
    lines = []
    for key, first in by_site[0].items() if by_site else ():
        if not all(key in sites for sites in by_site):
            continue
        made = [sites[key] for sites in by_site]
        batch = finder.product([plan.batch for plan in made])
        dims = [
            finder.blocks.length(lengths) for lengths in zip(*(p.dims for p in made), strict=True)
        ]
        texts = [text for text in dims if text is not None]
        if batch is None or len(texts) < len(dims):
            continue
        shape = ", ".join([*batch, *texts])
        axes = tuple(range(len(batch), len(batch) + len(texts)))
        dtype = "float32" if first.is_single else "float64"
        call = f'm.fft(({shape}), "{dtype}", axes={axes}, kind="{first.kind}")'
        if not is_own_call(first.place.filename):
            lines.append(f"# {first.place.code}")
        lines.append(call)
    return lines
