"""A ledger of what is alive at the peak alone, for methods whose order of allocations varies."""

from __future__ import annotations

from ..measure.allocation_sequence import Allocated, Freed
from ..measure.sequence_recorder import INPUT
from .alloc_call import AllocCall, SizeFinder
from .fold_loops import FoldedEvent, Token
from .ledger_text import AllocatingLine, KeyUse, LedgerParts
from .sequence_parts import line_of
from .traced_runs import TracedRun, small_paths


def peak_parts(
    runs: list[TracedRun],
    finder: SizeFinder,
    itemsize: int,
    is_summed: bool = False,
) -> LedgerParts:
    """List the allocations alive at the peak, all of a call path in one line.

    Where a method takes as many slices at a time as memory of some size holds, each array's size
    follows how many these are, and no formula of the dims. Their sum is that size.

    Parameters
    ----------
    runs : list of TracedRun
        The runs.
    finder : SizeFinder
        Finds their formulas.
    itemsize : int
        Bytes of an element of the input.
    is_summed : bool
        Whether allocations whose sizes have no formula are one line.
    """
    small = small_paths(runs)
    alive = [_alive_at_peak(run) for run in runs]
    keys = [key for key in dict.fromkeys(key for each in alive for key in each) if key not in small]
    formulas: dict[FoldedEvent, AllocCall] = {}
    for key in keys:
        sizes = [each.get(key, 0) for each in alive]
        step = FoldedEvent(Token(key, False))
        known = itemsize if key == INPUT.path else None
        formulas[step] = finder.formula(sizes, [], known) if all(sizes) else finder.bound(sizes)
    sites = {key: line_of(key, runs) for key in keys}
    bounds = [step for step, formula in formulas.items() if formula.is_bound] if is_summed else []
    if bounds:
        inexact = [step.token.key for step in bounds]
        sums = [sum(each.get(key, 0) for key in inexact) for each in alive]
        formulas = {step: each for step, each in formulas.items() if step not in bounds}
        formulas[bounds[0]] = finder.formula(sums, [], None)
        names = dict.fromkeys(sites[key].name for key in inexact if sites[key].name)
        sites[inexact[0]] = AllocatingLine(f"{', '.join(names)} together", "", "")
    return LedgerParts(
        program=tuple(formulas),
        formulas=formulas,
        passes={},
        sites=sites,
        uses={key: KeyUse(1) for key in keys},
    )


def _alive_at_peak(run: TracedRun) -> dict[str, int]:
    """Bytes alive at the peak by call path."""
    sequence = run.sequence
    sizes = list(sequence.alive_bytes())
    peak_at = sizes.index(max(sizes))
    alive: dict[int, Allocated] = {}
    for i, event in enumerate(sequence.events[: peak_at + 1]):
        if isinstance(event, Freed):
            del alive[event.which]
        else:
            alive[i] = event
    found: dict[str, int] = {}
    for event in alive.values():
        path = sequence.sites[event.site].path
        found[path] = found.get(path, 0) + event.n_bytes
    return found
