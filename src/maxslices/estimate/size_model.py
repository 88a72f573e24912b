"""Peaks for every size of the detector, from the peaks at a few sizes.

Each size of an allocation is a sum of products of the two other dims, or of the lengths that
programs make of them: half a dim and one for a real FFT, the next fast length, powers of two. What
explains all recorded sizes to the byte, one size more than it has unknowns at least, is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice
from typing import Any

from ..core.memory_model import MemoryModel
from ..core.plain_records import PlainRecord, to_plain
from .growth import COUNTS, Growth, fast_length
from .peak_model import PeakModel, Term

Dims = tuple[int, int]
Part = tuple[int, str, str]


def _pow2(n: int) -> int:
    return 1 << (n - 1).bit_length()


LENGTHS: dict[str, Callable[[int], int]] = {
    "1": lambda n: 1,
    "n": lambda n: n,
    "n//2": lambda n: n // 2,
    "even(n)": lambda n: n + n % 2,
    "fast(n)": fast_length,
    "pow2(n)": _pow2,
    "pow2(n+1)": lambda n: _pow2(n + 1),
    "pow2(2n)": lambda n: _pow2(2 * n),
    "n*n": lambda n: n * n,
    "even(n)*even(n)": lambda n: (n + n % 2) ** 2,
}
"""Lengths that programs make of a dim, by their names."""
_PRODUCTS = tuple((a, b) for a in LENGTHS for b in LENGTHS)
_MOST_OTHERS = 12
"""Explanations that are looked at: a power of two has most, each of two dims with three lengths."""
LEAST_SIZES = 4
"""Sizes that tell a formula: three for its unknowns, and one that proves it."""


def _value(parts: Sequence[Part], dims: Dims) -> int:
    return sum(factor * LENGTHS[a](dims[0]) * LENGTHS[b](dims[1]) for factor, a, b in parts)


@dataclass(frozen=True, slots=True)
class SizeFormula(PlainRecord):
    """A whole number as a sum of products of lengths."""

    as_list = True

    parts: tuple[Part, ...]
    """(factor, length of the first dim, length of the second)."""
    others: tuple[Part, ...] = ()
    """Single products that give what was recorded as well."""

    def at(self, dims: Dims) -> int:
        """Value for two dims."""
        return _value(self.parts, dims)

    def is_told(self, dims: Dims) -> bool:
        """True if all that explains what was recorded says the same for these dims."""
        return all(_value((other,), dims) == self.at(dims) for other in self.others)

    def check(self) -> None:
        """Raise an exception if there is no length of such a name."""
        for _, a, b in (*self.parts, *self.others):
            LENGTHS[a], LENGTHS[b]

    def __str__(self) -> str:
        texts = []
        for factor, a, b in self.parts:
            lengths = [x for x in (a.replace("n", "rows"), b.replace("n", "columns")) if x != "1"]
            texts.append(" * ".join([f"{factor:,}", *lengths]))
        return " + ".join(texts) or "0"


def find_formula(values: Mapping[Dims, int]) -> SizeFormula | None:
    """The simplest formula that gives all values; None if there is none."""
    return _find_formula(tuple(sorted(values.items())))


@lru_cache(maxsize=4096)
def _find_formula(values: tuple[tuple[Dims, int], ...]) -> SizeFormula | None:
    found = list(islice(_formulas(values), _MOST_OTHERS))
    if not found:
        return None
    others = tuple(each.parts[0] for each in found[1:] if len(each.parts) == 1)
    return replace(found[0], others=others)


def _formulas(values: Sequence[tuple[Dims, int]]) -> Iterator[SizeFormula]:
    wanted = [value for _, value in values]
    if not any(wanted):
        yield SizeFormula(())
        return
    columns = {
        (a, b): [LENGTHS[a](dims[0]) * LENGTHS[b](dims[1]) for dims, _ in values]
        for a, b in _PRODUCTS
    }
    for (a, b), column in columns.items():
        factor, rest = divmod(wanted[0], column[0])
        if not rest and [factor * each for each in column] == wanted:
            yield SizeFormula(((factor, a, b),))
    for ((a, b), first), ((c, d), second) in combinations(columns.items(), 2):
        rows = combinations(zip(first, second, wanted, strict=True), 2)
        pair = next(((u, v) for u, v in rows if u[0] * v[1] != u[1] * v[0]), None)
        if pair is None:
            continue
        (x, y, z), (u, v, w) = pair
        p, rest = divmod(z * v - w * y, x * v - y * u)
        q, other = divmod(x * w - u * z, x * v - y * u)
        if rest or other:
            continue
        if all(p * x + q * y == z for x, y, z in zip(first, second, wanted, strict=True)):
            yield SizeFormula(((p, a, b), (q, c, d)))


@dataclass(frozen=True, slots=True)
class SizedTerm(PlainRecord):
    """A `Term` for any dims."""

    as_list = True

    path: str
    start: SizeFormula
    step: SizeFormula
    count: str
    k: int
    number: Growth

    def check(self) -> None:
        """Raise an exception if there is no such count, or no chunk."""
        COUNTS[self.count](1, self.k)

    def at(self, dims: Dims) -> Term:
        """Term for two dims."""
        size = Growth(self.start.at(dims), self.step.at(dims), self.count, self.k)
        return Term(self.path, size, self.number, is_proven=True)


@dataclass(frozen=True)
class SizeModel(PlainRecord):
    """Peaks of a method for any number of slices and any dims."""

    moments: Mapping[str, tuple[SizedTerm, ...]]
    """Terms alive at each moment."""
    base: PeakModel
    """Call sites, and how bytes are rounded."""
    recorded: tuple[Dims, ...]
    """Dims at which peaks were recorded."""

    def is_told(self, dims: Dims) -> bool:
        """True if what was recorded leaves no doubt for these dims.

        Smaller ones than any recorded are not told: what does not grow with them, such as a table,
        may make another moment the highest.
        """
        if dims[0] * dims[1] < min(rows * columns for rows, columns in self.recorded):
            return False
        terms = [term for terms in self.moments.values() for term in terms]
        return all(term.start.is_told(dims) and term.step.is_told(dims) for term in terms)

    def at(self, dims: Dims) -> PeakModel:
        """Peaks for two dims."""
        moments = {
            label: tuple(term.at(dims) for term in terms) for label, terms in self.moments.items()
        }
        return replace(self.base, moments=moments, measured={})

    def model_at(self, dims: Dims) -> MemoryModel:
        """Memory model for two dims."""
        return MemoryModel(lru_cache(maxsize=1024)(self.at(dims).rising))

    @classmethod
    def fit(cls, peaks: Mapping[Dims, PeakModel], slices: Sequence[int]) -> SizeModel | None:
        """Find formulas that give all peaks at all recorded dims to the byte.

        Parameters
        ----------
        peaks : mapping
            Models by their dims, four at least.
        slices : sequence of int
            Numbers of slices at which the formulas are held against the models.

        Returns
        -------
        SizeModel or None
            None if no formulas give all peaks.
        """
        if len(peaks) < LEAST_SIZES:
            return None
        models = list(peaks.values())
        found: dict[str, tuple[SizedTerm, ...]] = {}
        for label in dict.fromkeys(label for model in models for label in model.moments):
            known = {
                d: model.moments[label] for d, model in peaks.items() if label in model.moments
            }
            terms = _sized(known) if len(known) >= LEAST_SIZES else None
            if terms is not None:
                found[label] = terms
        base = replace(
            models[0],
            sites={path: site for model in models for path, site in model.sites.items()},
            names={path: what for model in models for path, what in model.names.items()},
        )
        made = cls(found, base, tuple(peaks))
        near: dict[str, None] = {}
        for dims, model in peaks.items():
            at = made.at(dims)
            if not found or any(at.predicted(n) != model.predicted(n) for n in slices):
                return None
            near |= dict.fromkeys(at.pruned().moments)
        return made._only(list(near))

    def _only(self, labels: Sequence[str]) -> SizeModel:
        """Model of some of the moments."""
        moments = {label: self.moments[label] for label in labels}
        paths = {*labels, *(term.path for terms in moments.values() for term in terms)}
        base = replace(
            self.base,
            moments={},
            measured={},
            sites={path: site for path, site in self.base.sites.items() if path in paths},
            names={path: what for path, what in self.base.names.items() if path in paths},
        )
        return replace(self, moments=moments, base=base)

    def as_plain(self) -> Any:
        """Plain values for JSON; a term that is alive at several moments is written once."""
        numbers: dict[SizedTerm, int] = {}
        moments = {
            label: [numbers.setdefault(term, len(numbers)) for term in terms]
            for label, terms in self.moments.items()
        }
        terms = to_plain(list(numbers))
        base = {name: self.base.as_plain()[name] for name in ("sites", "names", "granule_bytes")}
        return base | {"moments": moments, "terms": terms, "recorded": to_plain(self.recorded)}

    @classmethod
    def from_plain(cls, plain: Any) -> SizeModel:
        """Read what `as_plain` wrote."""
        terms = dict(enumerate(map(SizedTerm.from_plain, plain["terms"])))
        moments = {
            label: tuple(terms[i] for i in numbers) for label, numbers in plain["moments"].items()
        }
        names = ("sites", "names", "granule_bytes")
        given = {name: plain[name] for name in names} | {"moments": {"": []}, "measured": []}
        recorded = tuple((int(rows), int(columns)) for rows, columns in plain["recorded"])
        return cls(moments, replace(PeakModel.from_plain(given), moments={}), recorded)


def _sized(terms: Mapping[Dims, Sequence[Term]]) -> tuple[SizedTerm, ...] | None:
    """Terms of one moment for any dims; None if they are not alike at all dims."""
    found = []
    if len({len(each) for each in terms.values()}) > 1:
        return None
    for alike in zip(*terms.values(), strict=True):
        sizes = [term.size for term in alike]
        growths = [size for size in sizes if isinstance(size, Growth)]
        kinds = {(size.count, size.k) for size in growths if size.step}
        paths, numbers = {term.path for term in alike}, {term.number for term in alike}
        whole = all(term.since == 1 and term.until is None for term in alike)
        one_of_each = len(kinds) <= 1 and len(paths) == len(numbers) == 1
        if len(growths) < len(alike) or not one_of_each or not whole:
            return None
        start = find_formula(dict(zip(terms, (each.start for each in growths), strict=True)))
        step = find_formula(dict(zip(terms, (each.step for each in growths), strict=True)))
        if start is None or step is None:
            return None
        count, k = kinds.pop() if kinds else ("1", 0)
        found.append(SizedTerm(alike[0].path, start, step, count, k, alike[0].number))
    return tuple(found)
