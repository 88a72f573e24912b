"""Extrapolation of records to other sizes of the detector.

The size of an allocation is a sum of products of the two other dims, or of lengths that programs
derive from them: half a dim plus one for a real FFT, the next fast length, a power of two. A
`SizeModel` holds such formulas. It is accepted if it reproduces all recorded peaks to the byte, at
`LEAST_SIZES` detector sizes or more. A `SizeRecord` holds it with the recorded sizes. If no
formulas reproduce the peaks, the record answers only for the measured sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np

from ..block_effect.effect import BlockEffect
from ..core.memory_model import MemoryModel
from ..measure.allocation_sequence import CallSite
from .formula import Formula, fast_length
from .model_request import ResolvedModel
from .peak_model import PeakModel, Term
from .probe_result import Probe
from .recorded import Entry
from .request_key import Environment, RequestKey

Dims = tuple[int, int]
Part = tuple[int, str, str]
Points = tuple[tuple[int, int], ...]


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
"""Lengths that programs derive from a dim, by name."""
_PRODUCTS = tuple((a, b) for a in LENGTHS for b in LENGTHS)
_MOST_OTHERS = 12
"""Largest number of formulas that are compared. A power of two has the most: three lengths per
dim."""
LEAST_SIZES = 4
"""Fewest sizes that determine a formula: three for its unknowns, and one to prove it."""
_COMPARED_SLICES = (1, 2, 3, 5, 8, 13, 16, 31, 64, 100, 1000)
"""Slices at which formulas are compared with the recorded peaks: odd, even, and beyond chunks."""
_KEPT_SLICES = (1, 2, 3, 5, 8, 16, 33)
"""Slices at which retained bytes are compared with a line."""
_MOST_SLICES = 1024
"""Number of slices up to which `upper_line` has a point for each."""
_ABOVE = 0.01
"""Relative excess of the lines of `upper_line` over the recorded peaks, at most."""


def _value(parts: Sequence[Part], dims: Dims) -> int:
    return sum(factor * LENGTHS[a](dims[0]) * LENGTHS[b](dims[1]) for factor, a, b in parts)


class SizeFormula(NamedTuple):
    """Integer as a sum of products of lengths."""

    parts: tuple[Part, ...]
    """(factor, length of the first dim, length of the second)."""
    others: tuple[Part, ...] = ()
    """Other single products that give the recorded values."""

    def at(self, dims: Dims) -> int:
        """Value for two dims."""
        return _value(self.parts, dims)

    def covers(self, dims: Dims) -> bool:
        """True if all formulas of the recorded values agree for these dims."""
        return all(_value((other,), dims) == self.at(dims) for other in self.others)

    def __str__(self) -> str:
        texts = []
        for factor, a, b in self.parts:
            lengths = [x for x in (a.replace("n", "rows"), b.replace("n", "columns")) if x != "1"]
            texts.append(" * ".join([f"{factor:,}", *lengths]))
        return " + ".join(texts) or "0"


def find_formula(values: Mapping[Dims, int]) -> SizeFormula | None:
    """Simplest formula that gives all values, or None if no formula does."""
    return _find_formula(tuple(sorted(values.items())))


@lru_cache(maxsize=4096)
def _find_formula(values: tuple[tuple[Dims, int], ...]) -> SizeFormula | None:
    formulas = list(islice(_formulas(values), _MOST_OTHERS))
    if not formulas:
        return None
    alternatives = tuple(each.parts[0] for each in formulas[1:] if len(each.parts) == 1)
    return formulas[0]._replace(others=alternatives)


def _formulas(values: Sequence[tuple[Dims, int]]) -> Iterator[SizeFormula]:
    """Formulas that give all values: single products first, then sums of two.

    A sum ``p * first + q * second`` has two unknowns. They follow from two values by Cramer's rule,
    and are used if they are integers and give the other values as well.
    """
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
        equations = combinations(zip(first, second, wanted, strict=True), 2)
        independent = ((i, j) for i, j in equations if i[0] * j[1] != i[1] * j[0])
        pair = next(independent, None)
        if pair is None:
            continue
        (x, y, z), (u, v, w) = pair  # p * x + q * y == z, and p * u + q * v == w
        determinant = x * v - y * u
        p, p_rest = divmod(z * v - w * y, determinant)
        q, q_rest = divmod(x * w - u * z, determinant)
        if p_rest or q_rest:
            continue
        if all(p * x + q * y == z for x, y, z in zip(first, second, wanted, strict=True)):
            yield SizeFormula(((p, a, b), (q, c, d)))


SizedTerm = tuple[Term, SizeFormula, SizeFormula]
"""A term at one of the recorded sizes, and its start and its step at any size."""


@dataclass(frozen=True)
class SizeModel:
    """Memory model of a method for any number of slices and any dims."""

    moments: Mapping[str, tuple[int, ...]]
    """Indices of the terms alive at each moment."""
    terms: tuple[SizedTerm, ...]
    """Distinct terms of all moments."""
    sites: Mapping[str, CallSite]
    """Call sites by their paths."""
    granule_bytes: int
    """Granule to which allocations are rounded up."""
    recorded: tuple[Dims, ...]
    """Dims at which peaks were recorded."""

    def covers(self, dims: Dims) -> bool:
        """True if all formulas for the recorded sizes agree for these dims.

        Dims with a smaller area than any recorded size are not covered. Their peak may be at
        another moment, at which memory of a fixed size is alive, such as a table.
        """
        if dims[0] * dims[1] < self.least_area:
            return False
        return all(start.covers(dims) and step.covers(dims) for _, start, step in self.terms)

    @property
    def least_area(self) -> int:
        """Product of the dims at the smallest recorded size."""
        return min(rows * columns for rows, columns in self.recorded)

    def at(self, dims: Dims) -> PeakModel:
        """Peaks for two dims."""
        terms = [
            term._replace(size=term.size._replace(start=start.at(dims), step=step.at(dims)))
            for term, start, step in self.terms
        ]
        moments = {label: tuple(terms[i] for i in alive) for label, alive in self.moments.items()}
        return PeakModel(moments, self.sites, {}, self.granule_bytes)

    @classmethod
    def fit(cls, peaks: Mapping[Dims, PeakModel]) -> SizeModel | None:
        """Find formulas that give all peaks at all recorded dims to the byte.

        Parameters
        ----------
        peaks : mapping
            Models by their dims.

        Returns
        -------
        SizeModel or None
            None if no formulas give all peaks, or there are fewer than `LEAST_SIZES` sizes.
        """
        models = list(peaks.values())
        sized: dict[str, tuple[SizedTerm, ...]] = {}
        for label in dict.fromkeys(label for model in models for label in model.moments):
            terms_at = {d: m.moments[label] for d, m in peaks.items() if label in m.moments}
            terms = _sized(terms_at) if len(terms_at) >= LEAST_SIZES else None
            if terms is not None:
                sized[label] = terms
        if not sized:
            return None
        sites = {path: site for model in models for path, site in model.sites.items()}
        size_model = _numbered(sized, sites, models[0].granule_bytes, tuple(peaks))
        near: dict[str, None] = {}
        for dims, model in peaks.items():
            at = size_model.at(dims)
            if any(at.predicted(n) != model.predicted(n) for n in _COMPARED_SLICES):
                return None
            near |= dict.fromkeys(at.pruned().moments)
        kept = {label: sized[label] for label in near}
        return _numbered(kept, sites, models[0].granule_bytes, tuple(peaks))


def _numbered(
    sized: Mapping[str, tuple[SizedTerm, ...]],
    sites: Mapping[str, CallSite],
    granule_bytes: int,
    recorded: tuple[Dims, ...],
) -> SizeModel:
    """Model of some moments with their distinct terms and call sites."""
    numbers: dict[SizedTerm, int] = {}
    moments = {
        label: tuple(numbers.setdefault(term, len(numbers)) for term in terms)
        for label, terms in sized.items()
    }
    paths = {*sized, *(term.path for term, _, _ in numbers)}
    return SizeModel(
        moments,
        tuple(numbers),
        {path: site for path, site in sites.items() if path in paths},
        granule_bytes,
        recorded,
    )


def _sized(terms: Mapping[Dims, Sequence[Term]]) -> tuple[SizedTerm, ...] | None:
    """Terms of one moment for any dims, or None if they differ in more than start and step."""
    if len({len(each) for each in terms.values()}) > 1:
        return None
    sized_terms = []
    for at_all_dims in zip(*terms.values(), strict=True):
        sizes = dict(zip(terms, (term.size for term in at_all_dims), strict=True))
        kinds = {(term.path, term.number, term.since, term.until) for term in at_all_dims}
        counts = {(size.counted, size.k) for size in sizes.values() if size.step} or {("1", 0)}
        start = find_formula({dims: size.start for dims, size in sizes.items()})
        step = find_formula({dims: size.step for dims, size in sizes.items()})
        (path, number, since, until), (counted, k) = kinds.pop(), counts.pop()
        is_partial = since > 1 or until is not None or any(size.points for size in sizes.values())
        if kinds or counts or is_partial or start is None or step is None:
            return None
        sized_terms.append((Term(path, Formula(0, 0, counted, k), number, True), start, step))
    return tuple(sized_terms)


class RecordedSize(NamedTuple):
    """Detector size at which a method was measured."""

    dims: Dims
    measured: Points
    """Measured calls, as (slices, bytes)."""
    peaks: Points
    """Peak bytes by slices, linear between points, or empty if formulas cover these dims."""


@dataclass(frozen=True)
class SizeRecord:
    """Records of one method at several detector sizes, and formulas for other sizes."""

    question: RequestKey
    """Key of one of the requests, which differ only in their dims."""
    place: Environment
    """Device and libraries of the measurements."""
    time_s: float
    """Time of the last measurement, in seconds since 1970."""
    formulas: SizeModel | None
    """Formulas in the dims, or None if no formulas give all recorded peaks."""
    sizes: tuple[RecordedSize, ...]
    """The recorded sizes."""
    output_dtype: str | None
    """Dtype of the result."""
    output_dims: tuple[SizeFormula, SizeFormula] | None
    """Dims of the result by dims of the input, or None if it is not a block of slices."""
    kept: tuple[SizeFormula, SizeFormula] | float
    """Bytes retained after a call, as a line in n or as a fraction of the peak."""
    pace: tuple[float, float]
    """Overhead of a call in seconds, and seconds per pixel of a slice."""
    blocks: BlockEffect | str
    """Effect of the block size on the result, or the reason why blocks were not compared."""
    is_of_any_card: bool
    """True if the record is valid for any card."""
    same: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of parameters for which the memory was the same, by name."""

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        same: Mapping[str, tuple[Any, ...]] | None = None,
    ) -> SizeRecord | None:
        """Make a record of entries that differ only in their dims, with `same` as in the field.

        Returns None if the dims of the result are not functions of the dims of the input.
        """
        probes = {entry.question.other_dims: entry.probe for entry in entries}
        models = {dims: probe.model() for dims, probe in probes.items()}
        outputs = {dims: p.output_dims for dims, p in probes.items() if p.output_dims is not None}
        blocks = [probe.blocks for probe in probes.values()]
        effects = [each for each in blocks if isinstance(each, BlockEffect)]
        formulas, output = fit_formulas(probes), _pair(outputs)
        if outputs and output is None:
            return None
        last = max(entries, key=lambda entry: entry.time_s)
        return cls(
            question=last.question,
            place=last.place,
            time_s=last.time_s,
            formulas=formulas,
            sizes=tuple(
                RecordedSize(
                    dims,
                    tuple(sorted(probe.measured.items())),
                    () if formulas and formulas.covers(dims) else upper_line(models[dims]),
                )
                for dims, probe in probes.items()
            ),
            output_dtype=last.probe.output_dtype,
            output_dims=output,
            kept=_kept(models),
            pace=_pace(probes),
            blocks=max(
                effects,
                key=lambda each: (each.least_block, each.difference),
                default=max(map(str, blocks)),
            ),
            is_of_any_card=not any(r.outside_bytes for p in probes.values() for r in p.rungs),
            same=dict(same or {}),
        )

    @property
    def dims(self) -> tuple[Dims, ...]:
        """Measured sizes."""
        return tuple(size.dims for size in self.sizes)

    def at(self, dims: Dims) -> ResolvedModel | None:
        """Answer for two dims, or None if they were not measured and no formula covers them.

        For fewer rows than are covered, as in a sweep, the answer is an upper bound: the memory of
        the fewest covered rows with the same columns.
        """
        answer = self._at(dims)
        if answer is None and self.formulas is not None:
            rows = -(-self.formulas.least_area // dims[1])
            rows += (rows - dims[0]) % 2  # FFTs of even and odd lengths differ
            at_least = self._at((rows, dims[1])) if rows > dims[0] else None
            if at_least is not None:
                how = f"a bound: as much as for {rows}x{dims[1]}, the fewest rows that are covered"
                answer = replace(at_least, why=f"{how} ({at_least.why})")
        if answer is None or self.output_dims is None:
            return answer
        first, second = self.output_dims
        return replace(answer, output_dims=(first.at(dims), second.at(dims)))

    def _at(self, dims: Dims) -> ResolvedModel | None:
        """Answer for dims that were measured or that formulas cover."""
        own = next((size.peaks for size in self.sizes if size.dims == dims and size.peaks), None)
        if own is not None:
            bytes_at, how = MemoryModel.piecewise(own).bytes, "measured at this size"
        elif self.formulas is not None and self.formulas.covers(dims):
            bytes_at = lru_cache(maxsize=1024)(self.formulas.at(dims).rising)
            how = f"formulas that give it to the byte at {len(self.sizes)} sizes"
        else:
            return None
        call_s, pixel_s = self.pace
        return ResolvedModel(
            MemoryModel(bytes_at, self._kept_at(dims, bytes_at)),
            "recorded",
            how,
            None if self.output_dtype is None else np.dtype(self.output_dtype),
            pace_s=(call_s, pixel_s * dims[0] * dims[1]),
            blocks=self.blocks,
        )

    def _kept_at(self, dims: Dims, bytes_at: Callable[[int], int]) -> Callable[[int], int] | None:
        """Bytes retained after a call with n slices, or None if calls free everything."""
        if isinstance(self.kept, float):
            part = self.kept
            return (lambda n: int(part * bytes_at(n))) if part else None
        start, step = (formula.at(dims) for formula in self.kept)
        return (lambda n: min(start + step * n, bytes_at(n))) if start or step else None


def fit_formulas(probes: Mapping[Dims, Probe]) -> SizeModel | None:
    """Formulas of the probes that extrapolate exactly, or None if below any measured call."""
    exact = {dims: probe.peaks for dims, probe in probes.items() if probe.extrapolates_exactly}
    size_model = SizeModel.fit(exact)
    if size_model is not None:
        for dims, probe in probes.items():
            model = size_model.at(dims)
            if any(model.rising(n) < size for n, size in probe.measured.items()):
                return None
    return size_model


def upper_line(model: MemoryModel) -> Points:
    """Points whose interpolation is never below a model, and at most `_ABOVE` above it."""
    sizes = [0, *(model.bytes(n) for n in range(1, _MOST_SLICES + 1))]
    points = [(1, sizes[1])]
    while points[-1][0] < _MOST_SLICES:
        first, start = points[-1]
        lowest, highest, best = 0.0, float("inf"), first + 1
        for n in range(first + 1, _MOST_SLICES + 1):
            slope = (sizes[n] - start) / (n - first)
            if lowest <= slope <= highest:
                best = n
            lowest = max(lowest, slope)
            highest = min(highest, ((1 + _ABOVE) * sizes[n] - start) / (n - first))
            if lowest > highest:
                break
        points.append((best, sizes[best]))
    return (*points, (2 * _MOST_SLICES, model.bytes(2 * _MOST_SLICES)))


def _pair(values: Mapping[Dims, tuple[int, int]]) -> tuple[SizeFormula, SizeFormula] | None:
    """Formulas of two values, or None if either has no formula."""
    if not values:
        return None
    first, second = (find_formula({d: each[i] for d, each in values.items()}) for i in (0, 1))
    return None if first is None or second is None else (first, second)


def _kept(models: Mapping[Dims, MemoryModel]) -> tuple[SizeFormula, SizeFormula] | float:
    """Retained bytes as a line in n with formulas in the dims, else as a fraction of the peak."""
    lines = {}
    for dims, model in models.items():
        step = model.kept_bytes(2) - model.kept_bytes(1)
        start = model.kept_bytes(1) - step
        if any(model.kept_bytes(n) != start + step * n for n in _KEPT_SLICES):
            break
        lines[dims] = start, step
    else:
        line = _pair(lines)
        if line is not None:
            return line
    return max(m.kept_bytes(n) / m.bytes(n) for m in models.values() for n in _KEPT_SLICES)


def _pace(probes: Mapping[Dims, Probe]) -> tuple[float, float]:
    """Overhead of a call in seconds and seconds per pixel of a slice, from the largest size."""
    dims = max(probes, key=lambda each: each[0] * each[1])
    call_s, slice_s = probes[dims].pace_s()
    return float(f"{call_s:.3g}"), float(f"{slice_s / (dims[0] * dims[1]):.3g}")
