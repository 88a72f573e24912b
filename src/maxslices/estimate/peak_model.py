"""The peak of a method as a sum of allocations, each a formula in the number of slices n.

Each line of code that allocates has one *moment*: of all times that the line is reached, the one at
which most memory is alive. A moment is a list of the allocations alive then, by call site. The
lists of a few calls are compared. Each size, or number of equal sizes, is a `Formula` that agrees
with all calls exactly. The peak for n slices is the largest moment. Loops need no special
treatment, because the line of a loop has one moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..core.allocators import CUDA_GRANULE_BYTES
from ..measure.allocation_sequence import AllocationSequence, CallSite
from .formula import CHUNKS_OF, Formula, first_fit

Sizes = tuple[int, ...]
ONE = Formula(1)
PERIOD = 16
"""Slice counts over which the maximum is taken where memory may decrease. The largest chunks of the
measured methods have 16 slices."""
_SAMPLES = (1, 2, 3, 5, 8, 13, 16, 31, 64, 97, 1000, 10**6)
"""Slice counts at which moments are compared: odd, even, powers of two, and beyond any chunk."""
_NEAR = 2
"""Moments that are lower than the highest by more than this factor are omitted. The others are
kept, because they may be the highest at a detector size that a program pads to a power of two."""
_ENOUGH = 3
"""Number of calls that determine a formula: two for its start and step, and one to prove it."""


BESIDE = "beside "
"""Prefix of the label of a moment at which memory outside the pool was read. The path of the last
call site follows."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Moments of one call, from its `AllocationSequence`."""

    n_slices: int
    n_bytes: int
    """Peak, in granules."""
    moments: Mapping[str, Mapping[str, Sizes]]
    """Requested bytes of the allocations alive at each moment, in order, by the path of their call
    site. The label of a moment is the path of the call site that allocates then."""
    sites: Mapping[str, CallSite]
    outside: Mapping[str, int] = field(default_factory=dict)
    """Largest reading outside the pool at moments of its own, by their labels."""

    @classmethod
    def of(
        cls,
        sequence: AllocationSequence,
        granule: int = CUDA_GRANULE_BYTES,
        readings: Iterable[tuple[int, int, int]] = (),
    ) -> Observation:
        """Find the moments of a sequence.

        Parameters
        ----------
        sequence : AllocationSequence
            The call.
        granule : int
            Granule to which allocations are rounded up.
        readings : iterable of (int, int, int)
            Readings of memory outside the pool: number of events of the sequence before the
            reading, bytes held by the pool, and bytes outside.
        """
        sizes = list(sequence.alive_bytes(granule))
        paths = [site.path for site in sequence.sites]
        highest: dict[int, tuple[int, int]] = {}
        for i, alive in enumerate(sizes):
            event = sequence.events[i]
            if event.site is not None and alive > highest.get(event.site, (-1, 0))[0]:
                highest[event.site] = alive, i
        event_of = {paths[site]: i for site, (_, i) in highest.items()}  # of each moment
        # Of several readings after one call site, the largest is kept: the last of a sorted list.
        largest = {
            BESIDE + _last_path(sequence, each[0]): each
            for each in sorted(readings, key=lambda each: each[2])
        }
        for label, (n_events, held, _) in largest.items():
            # The pool held at least the memory in use: the highest use that `held` allows.
            possible = [i for i in range(n_events - 1) if sizes[i] <= held]
            event_of[label] = max([*possible, n_events - 1], key=lambda i: sizes[i])
        outside = {label: n_bytes for label, (_, _, n_bytes) in largest.items()}
        labels: dict[int, list[str]] = {}  # of the moments at each event
        for label, i in event_of.items():
            labels.setdefault(i, []).append(label)
        moments: dict[str, Mapping[str, Sizes]] = {}
        now: dict[int, Any] = {}
        for i, event in enumerate(sequence.events):
            if event.site is None:
                del now[event.which]
            else:
                now[i] = event
            if i in labels:
                groups: dict[str, list[int]] = {}
                for each in now.values():
                    groups.setdefault(paths[each.site], []).append(each.n_bytes)
                alive_now = {path: tuple(requested) for path, requested in groups.items()}
                moments |= dict.fromkeys(labels[i], alive_now)
        sites = {site.path: site for site in sequence.sites}
        sites |= {label: sites[label.removeprefix(BESIDE)] for label in outside}
        return cls(sequence.n_slices, max(sizes, default=0), moments, sites, outside)


class Term(NamedTuple):
    """Allocations of one size and call site that are alive at a moment."""

    path: str
    """Path of the call site."""
    size: Formula
    """Requested bytes of one allocation."""
    number: Formula = ONE
    """Number of allocations."""
    is_proven: bool = False
    """True if more calls agree than the formula has unknowns."""
    since: int = 1
    """Fewest slices for which the term is valid."""
    until: int | None = None
    """Most slices for which the term is valid."""

    def n_bytes(self, n: int, granule: int) -> int:
        """Bytes taken for n slices."""
        if n < self.since or (self.until is not None and n > self.until):
            return 0
        size = max(0, self.size.at(n))
        return max(0, self.number.at(n)) * (-(-size // granule) * granule)


@dataclass(frozen=True)
class PeakModel:
    """Peak of a method for any number of slices."""

    moments: Mapping[str, tuple[Term, ...]]
    """Terms alive at each moment, by the path of the allocating call site."""
    sites: Mapping[str, CallSite]
    """Call sites by their paths."""
    measured: Mapping[int, int]
    """Peaks of the calls, by number of slices."""
    granule_bytes: int = CUDA_GRANULE_BYTES

    @classmethod
    def fit(
        cls,
        observations: Sequence[Observation],
        granule_bytes: int = CUDA_GRANULE_BYTES,
        cut: Sequence[Observation] = (),
    ) -> PeakModel:
        """Fit formulas to all calls or, if none agree, to the calls with the most slices.

        Parameters
        ----------
        observations : sequence of Observation
            The calls.
        granule_bytes : int
            Granule to which allocations are rounded up.
        cut : sequence of Observation
            Calls up to the request for which memory ran out. Their moments may be too low, so the
            allocations of a call site count only where they exceed the formulas of the other calls.
        """
        ordered = sorted(observations, key=lambda each: each.n_slices)
        moments: dict[str, tuple[Term, ...]] = {}
        for label in dict.fromkeys(label for each in ordered for label in each.moments):
            seen = {o.n_slices: o.moments[label] for o in ordered if label in o.moments}
            terms = []
            for path in dict.fromkeys(path for alive in seen.values() for path in alive):
                points = {n: alive.get(path, ()) for n, alive in seen.items()}
                site_terms = _terms(path, points)
                for each in cut:
                    sizes, n = _in_cut(each, label, path, ordered), each.n_slices
                    if sum(sizes) > _bytes_of(site_terms, n, 1):
                        points[n] = sizes
                        site_terms = _terms(path, points)
                terms += site_terms
            if (last := max(seen)) < ordered[-1].n_slices:  # calls with more slices skip this line
                terms = [term._replace(until=min(term.until or last, last)) for term in terms]
            moments[label] = tuple(terms)
        measured = {each.n_slices: each.n_bytes for each in ordered}
        sites = {path: site for each in ordered for path, site in each.sites.items()}
        return cls(moments, sites, measured, granule_bytes)

    @cached_property
    def _numbered(self) -> tuple[list[Term], dict[str, list[int]]]:
        """Distinct terms, and their indices at each moment. Most are alive at many moments."""
        numbers: dict[Term, int] = {}
        moments = {
            label: [numbers.setdefault(term, len(numbers)) for term in terms]
            for label, terms in self.moments.items()
        }
        return list(numbers), moments

    def moments_bytes(self, n: int) -> dict[str, int]:
        """Bytes alive at each moment."""
        terms, moments = self._numbered
        sizes = [term.n_bytes(n, self.granule_bytes) for term in terms]
        return {label: sum([sizes[i] for i in numbers]) for label, numbers in moments.items()}

    def highest(self, n: int) -> str:
        """Moment of the peak."""
        sizes = self.moments_bytes(n)
        return max(sizes, key=sizes.__getitem__)

    def predicted(self, n: int) -> int:
        """Peak for n slices by the formulas alone."""
        return max(self.moments_bytes(n).values(), default=0)

    def bytes(self, n: int) -> int:
        """Peak for n slices, from a measured call with n slices or else from the formulas.

        It is at least the peak of any call with fewer slices. If memory never decreases, it is at
        most the peak of any call with more slices.
        """
        at_least = max((size for k, size in self.measured.items() if k <= n), default=0)
        if n in self.measured:
            return at_least
        above = [] if self.may_fall else [size for k, size in self.measured.items() if k > n]
        return max(at_least, min([self.predicted(n), *above]))

    def is_proven(self, label: str) -> bool:
        """True if more calls agree with a moment's formulas than the formulas have unknowns."""
        return all(term.is_proven for term in self.moments[label])

    def plus(self, path: str, formula: Formula) -> PeakModel:
        """Model with additional memory at every moment, from outside the sequence."""
        if formula == Formula(0):
            return self
        more = Term(path, formula, is_proven=True)
        moments = {label: (*terms, more) for label, terms in self.moments.items()}
        measured = {n: size + formula.at(n) for n, size in self.measured.items()}
        return replace(self, moments=moments, measured=measured)

    def with_outside(self, path: str, formulas: Mapping[str, Formula]) -> PeakModel:
        """Model with memory outside the pool. Its moments without a formula are omitted."""
        moments = {
            label: (*terms, Term(path, formulas[label], is_proven=True))
            if label in formulas
            else terms
            for label, terms in self.moments.items()
            if label in formulas or not label.startswith(BESIDE)
        }
        return replace(self, moments=moments)

    def with_measured(self, measured: Mapping[int, int]) -> PeakModel:
        """Model with further measured peaks by slices, of which the larger of two counts."""
        higher = {n: max(size, self.measured.get(n, 0)) for n, size in measured.items()}
        return replace(self, measured={**self.measured, **higher})

    @cached_property
    def may_fall(self) -> bool:
        """True if more slices may need less memory."""
        terms = [term for terms in self.moments.values() for term in terms]
        return any(t.size.may_fall or t.number.may_fall or t.until is not None for t in terms)

    @property
    def numbers_fall(self) -> bool:
        """True if there may be fewer allocations with more slices."""
        return any(term.number.may_fall for terms in self.moments.values() for term in terms)

    def rising(self, n: int) -> int:
        """Largest peak of n slices or a few fewer, because the last block of a plan is smaller.

        If memory may decrease, as with a partial last chunk, this is the maximum over `PERIOD`
        numbers of slices.
        """
        if not self.may_fall:
            return self.bytes(n)
        return max(self.bytes(k) for k in range(max(1, n - PERIOD + 1), n + 1))

    def pruned(self) -> PeakModel:
        """Model without moments that are far lower than another, apart from their common terms."""
        counted = {label: Counter(terms) for label, terms in self.moments.items()}
        granule = self.granule_bytes
        most = {
            label: _bytes_of(terms, _SAMPLES[-1], granule) for label, terms in self.moments.items()
        }

        def is_lower(label: str, other: str) -> bool:
            own_only, other_only = counted[label] - counted[other], counted[other] - counted[label]
            return all(
                _NEAR * _bytes_of(own_only.elements(), n, granule)
                <= _bytes_of(other_only.elements(), n, granule)
                for n in _SAMPLES
            )

        kept: list[str] = []
        for label in sorted(most, key=lambda label: -most[label]):
            if not any(is_lower(label, other) for other in kept):
                kept.append(label)
        moments = {label: terms for label, terms in self.moments.items() if label in kept}
        paths = {*moments, *(term.path for terms in moments.values() for term in terms)}
        return replace(
            self,
            moments=moments,
            sites={path: site for path, site in self.sites.items() if path in paths},
        )


def _last_path(sequence: AllocationSequence, n_events: int) -> str:
    """Path of the last call site that allocated in the first events."""
    sites = (event.site for event in reversed(sequence.events[:n_events]))
    return next((sequence.sites[site].path for site in sites if site is not None), "")


def _bytes_of(terms: Iterable[Term], n: int, granule: int) -> int:
    return sum(term.n_bytes(n, granule) for term in terms)


def _in_cut(cut: Observation, label: str, path: str, calls: Sequence[Observation]) -> Sizes:
    """Sizes of a call site's allocations at one moment of a cut call, or () if unknown.

    For a moment that the call did not reach, they are taken from a moment at which they were equal
    in all other calls.
    """

    def at(each: Observation, moment: str) -> Sizes | None:
        return each.moments[moment].get(path) if moment in each.moments else None

    if label in cut.moments:
        return at(cut, label) or ()
    sizes_at = [(at(each, label), each) for each in calls]
    same = [
        sizes_in_cut
        for moment in cut.moments
        if (sizes_in_cut := at(cut, moment))
        and all(at(each, moment) == sizes for sizes, each in sizes_at)
    ]
    return max(same, key=sum, default=())


def _terms(path: str, points: Mapping[int, Sizes]) -> list[Term]:
    """Terms of one call site at one moment, from sizes by the number of slices.

    A method may work differently above some number of slices. If no formula agrees with all calls,
    calls with the fewest slices are omitted one by one, and become guesses (`_guess`).
    """
    seen = sorted(points.items())
    for start in range(len(seen) - 1):
        later = seen[start:]
        formulas = _grouped(later) or _first_and_last(later)
        if formulas is not None:
            since, proven = later[0][0] if start else 1, len(later) >= _ENOUGH
            terms = [Term(path, *each, is_proven=proven, since=since) for each in formulas]
            return terms + (_guess(path, seen[: start + 1], since - 1) if start else [])
    return _guess(path, seen, None)


def _guess(path: str, seen: Sequence[tuple[int, Sizes]], until: int | None) -> list[Term]:
    """Total of a site in each call as one allocation, up to `until` slices."""
    totals = [(n, sum(sizes)) for n, sizes in seen]
    if not any(total for _, total in totals):
        return []
    return [Term(path, Formula(0, points=tuple(totals)), until=until)]


_Formulas = list[tuple[Formula, Formula]]


def _grouped(seen: Sequence[tuple[int, Sizes]]) -> _Formulas | None:
    """Formulas for size and number, or None if calls have different numbers of distinct sizes."""
    groups = []
    for n, sizes in seen:
        counted: dict[int, int] = {}
        for size in sorted(sizes, reverse=True):
            counted[size] = counted.get(size, 0) + 1
        groups.append((n, list(counted.items())))
    if len({len(group) for _, group in groups}) > 1:
        return None
    formulas = []
    for i in range(len(groups[0][1])):
        of_one = first_fit({n: group[i][0] for n, group in groups})
        number = first_fit({n: group[i][1] for n, group in groups})
        if of_one is None or number is None:
            return None
        is_constant = number == Formula(number.start)
        formulas += [(of_one, ONE)] * number.start if is_constant else [(of_one, number)]
    return formulas


def _first_and_last(seen: Sequence[tuple[int, Sizes]]) -> _Formulas | None:
    """Formulas for the allocations that all chunks share, and for those of a partial last chunk.

    FFT plans are cached by their shapes: k equal chunks have one plan, and a smaller last chunk has
    another.
    """
    if {len(sizes) for _, sizes in seen} != {1, 2}:
        return None
    first = first_fit({n: sizes[0] for n, sizes in seen})
    if first is None or first.counted != "ceil(n/k)":
        return None
    for of in CHUNKS_OF:
        last = first._replace(counted=f"last({of}/k)")
        ragged = Formula(0, 1, f"ragged({of}/k)", first.k)
        if all(sizes[1:] == (last.at(n),) * ragged.at(n) for n, sizes in seen):
            return [(first, ONE), (last, ragged)]
    return None
