"""Ledgers from runs of one sequence: one program reads all, and each step gets its formula."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import MaxslicesError
from ..measure import Place
from ..measure.allocation_sequence import Allocated, Freed
from ..measure.sequence_recorder import INPUT
from .alloc_call import AllocCall, SizeFinder
from .fold_loops import FoldedEvent, Loop, Program, Reading, Token, fold, read, steps
from .ledger_text import AllocatingLine, KeyUse, LedgerParts, is_balanced
from .line_names import assigned_name, code_at, is_own_call
from .traced_runs import RunMaker, TracedRun, allocations, small_paths

_LEAST_SHARE = 0.7
"""Share of the blocks that must be read by one program: of the others, which take another way, the
ledger covers the peak."""


_DTYPE_RUNS = (0, 4)
"""Blocks that are run again with another dtype: two that differ in all dims."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded sequence with the runs that can be read by it."""

    program: Program
    """The sequence, its loops folded."""
    runs: list[TracedRun]
    """Runs that it reads."""
    readings: list[Reading]
    """How each passes it."""
    indices: list[list[int]]
    """For each run, the event that each token stands for."""


def fold_runs(runs: list[TracedRun]) -> Folded | None:
    """The program by which most runs can be read, and their readings; None if those are few."""
    small = small_paths(runs)
    pairs = [run.tokens(small) for run in runs]
    found: Folded | None = None
    tried: set[tuple[Token, ...]] = set()
    for i in sorted(range(len(runs)), key=lambda i: -len(pairs[i][0])):
        if tuple(pairs[i][0]) in tried:
            continue
        tried.add(tuple(pairs[i][0]))
        program = fold(pairs[i][0])
        folded = Folded(program, [], [], [])
        for run, (tokens, at) in zip(runs, pairs, strict=True):
            reading = read(program, tokens)
            if reading is not None:
                folded.runs.append(run)
                folded.readings.append(reading)
                folded.indices.append(at)
        if found is None or len(folded.runs) > len(found.runs):
            found = folded
        if len(folded.runs) == len(runs):
            break
    assert found is not None  # there is a run, and it can be read by its own program
    return found if len(found.runs) >= _LEAST_SHARE * len(runs) else None


def sequence_parts(
    folded: Folded,
    finder: SizeFinder,
    itemsize: int,
    follows: set[FoldedEvent],
) -> LedgerParts | None:
    """Parts of a ledger that follows the sequence; None if a loop's passes have no formula.

    Parameters
    ----------
    folded : Folded
        The runs, read by one program.
    finder : SizeFinder
        Finds formulas for them.
    itemsize : int
        Bytes of an element of the input.
    follows : set of FoldedEvent
        Allocations that grow with that.
    """
    runs, program, readings, indices = folded.runs, folded.program, folded.readings, folded.indices
    formulas: dict[FoldedEvent, AllocCall] = {}
    for step in steps(program):
        if step.token.is_free:
            continue
        made = [
            _largest(step, run, reading, at)
            for run, reading, at in zip(runs, readings, indices, strict=True)
        ]
        is_input = step.token.key == INPUT.path
        known = itemsize if is_input or step in follows else None
        formula = _formula(made, finder, known)
        if formula is None or formula.is_bound:
            # A loop that some runs do not pass, or the rest after whole chunks: the largest
            # allocation that was reached on the same way covers it.
            largest = [_largest_of(step.token.key, run) for run in runs]
            covering = _formula(largest, finder, known)
            if formula is None or (covering is not None and not covering.is_bound):
                formula = covering
        if formula is None:
            return None
        if known and not formula.shape:  # a sum, of bytes
            items = f"({formula.n_bytes}) // {known}"
            formula = replace(formula, shape=(items,), dtype="dtype", n_bytes="")
        formulas[step] = formula
    passes: dict[Loop, str] = {}
    for loop in dict.fromkeys(loop for reading in readings for loop in reading.passes):
        counts = [max(reading.passes.get(loop, [0])) for reading in readings]
        text = finder.blocks.length(counts)
        if text is not None:
            passes[loop] = text
        elif not is_balanced(loop):
            return None
    return LedgerParts(
        program=program,
        formulas=formulas,
        passes=passes,
        sites={step.token.key: line_of(step.token.key, runs) for step in steps(program)},
        uses=_uses(runs, {step.token.key for step in steps(program)}),
    )


def _formula(
    made: list[Allocated | None], finder: SizeFinder, input_itemsize: int | None
) -> AllocCall | None:
    """Formula of one allocation of each run; None if a run has none."""
    seen = [event for event in made if event is not None]
    if len(seen) < len(made):
        return None
    arrays = [event.what.partition(" ")[2] for event in seen]
    return finder.formula([event.n_bytes for event in seen], arrays, input_itemsize)


def _largest(
    step: FoldedEvent, run: TracedRun, reading: Reading, indices: list[int]
) -> Allocated | None:
    """Largest allocation that a step stands for; None if the run has none."""
    events = [run.sequence.events[indices[i]] for i in reading.events.get(step, [])]
    made = [event for event in events if isinstance(event, Allocated)]
    return max(made, key=lambda event: event.n_bytes, default=None)


def _largest_of(key: str, run: TracedRun) -> Allocated | None:
    """Largest allocation of a call path; None if the run has none."""
    made = [event for path, event in allocations(run) if path == key]
    return max(made, key=lambda event: event.n_bytes, default=None)


def with_other_dtype(
    maker: RunMaker, folded: Folded, dtype: np.dtype[Any]
) -> tuple[np.dtype[Any] | None, set[FoldedEvent]]:
    """Another dtype with which the same is allocated, and the allocations that grow with it."""
    small = small_paths(folded.runs)
    for name in ("uint16", "float32", "float64"):
        other = np.dtype(name)
        if other == dtype:
            continue
        follows: set[FoldedEvent] = set()
        stays: set[FoldedEvent] = set()
        for index in _DTYPE_RUNS:
            run, reading = folded.runs[index], folded.readings[index]
            at = folded.indices[index]
            try:
                again = maker.run(run.shape, other)
            except MaxslicesError:
                raise
            except Exception:  # noqa: BLE001 - a method may refuse a dtype in any way
                break
            tokens, at_again = again.tokens(small)
            read_again = read(folded.program, tokens)
            if read_again is None:
                break
            for step in steps(folded.program):
                one = _largest(step, run, reading, at)
                two = _largest(step, again, read_again, at_again)
                if one is None or two is None:
                    continue
                if two.n_bytes * dtype.itemsize == one.n_bytes * other.itemsize:
                    follows.add(step)
                elif two.n_bytes == one.n_bytes:
                    stays.add(step)
                else:
                    return None, set()
        else:
            if not follows & stays:
                return other, follows
    return None, set()


def _uses(runs: list[TracedRun], keys: set[str]) -> dict[str, KeyUse]:
    uses = {key: KeyUse() for key in keys}
    for run in runs:
        alive: dict[str, list[int]] = {}
        for i, event in enumerate(run.sequence.events):
            which = event.which if isinstance(event, Freed) else i
            source = run.sequence.events[which]
            assert isinstance(source, Allocated)
            key = run.sequence.sites[source.site].path
            if key not in uses:
                continue
            here = alive.setdefault(key, [])
            if isinstance(event, Freed):
                uses[key].is_freed = True
                if len(here) > 1:
                    uses[key].last_first = here[-1] == which
                here.remove(which)
            else:
                here.append(i)
                uses[key].most_alive = max(uses[key].most_alive, len(here))
    return uses


def line_of(key: str, runs: list[TracedRun]) -> AllocatingLine:
    """Line and array's name of a call path."""
    for run in runs:
        for i, site in enumerate(run.sequence.sites):
            if site.path != key:
                continue
            if site == INPUT:
                return AllocatingLine("the input", "", "")
            if is_own_call(site.filename):
                return AllocatingLine("", "", "")
            names = [
                event.what.partition(" ")[0]
                for event in run.sequence.events
                if isinstance(event, Allocated) and event.site == i and event.what
            ]
            name = names[0] if names else assigned_name(site.filename, site.line)
            place = str(Place(site.filename, site.line)).rpartition("/")[2]
            return AllocatingLine(name, place, code_at(site.filename, site.line))
    raise KeyError(key)
