"""Suggest a ledger for a method from its allocations at the peak on a few small blocks.

The blocks have a few sizes of the other dims, each with a few numbers of slices. The memory of one
line of code at the peak is a formula in the slices at each size (`formula`), whose numbers are
formulas in the other dims (`size_model`). Lines without such a formula, and memory outside arrays,
are combined in one upper bound.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..checking.estimate_check import find_method, trial_of
from ..core import named_method
from ..core.allocators import Device
from ..core.arrays import ArraySpec, as_dtype, block_shape
from ..core.author_code import raised_at, what_raised
from ..core.ledger import Ledger, LedgerEstimator
from ..core.method_meta import MethodMeta
from ..devices import select_backend
from ..errors import DeviceError, EstimatorError, MaxslicesError, UsageError
from ..estimate.formula import first_fit
from ..estimate.size_model import Dims, SizeFormula, find_formula
from ..measure.allocation_sequence import INPUT, Alive, CallSite
from ..measure.host_memory import tracemalloc_on
from ..trial.trial import is_call
from ..tuning.garbage_collection import quick_collections

_SLICES = (7, 23, 67)
"""Slices of the blocks. With the most slices, methods that process 16 or 32 at a time have three
chunks."""
_OTHER_DIMS = ((109, 139), (103, 67), (71, 53), (199, 113), (62, 178))
"""Other dims of the blocks. Most are primes, for which a size has one formula. Some are twice a
prime, because FFT lengths of odd and even dims differ."""
_WARM_UP = 5, (96, 64)
"""Slices and other dims of the first call."""
_LEAST_SIZES = 4
"""Fewest pairs of other dims with which a method must run. With fewer, formulas are ambiguous."""
_LEAST_BYTES = 2048
"""Least size of a listed allocation in any block. Scalars and index arrays are smaller."""
_WHOLE_BYTES = 1024
"""Bytes to a multiple of which constants are rounded up, because small Python objects differ by 100
bytes from call to call (3,258 and 3,314 for gaussian_filter, 2026-11-27)."""
_PEAK_TOLERANCE = 0.02
"""Excess of a bound, as a fraction of the peak, below which no further terms are tried."""
_MARGIN = 1.02
"""Safety factor of a bound. For a method that pads its rows and columns, a sum of products of dims
that covered the measured blocks was 0.15 % too low at other sizes."""
_BOUNDS: tuple[tuple[tuple[int, int, int], ...], ...] = (
    ((0, 0, 0),),
    ((1, 1, 1), (0, 0, 0)),
    ((1, 1, 1), (0, 1, 1), (0, 0, 0)),
    ((1, 1, 1), (0, 1, 1), (0, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 0), (0, 0, 1)),
)
"""Terms of bounds, as powers of (slices, first, second other dim)."""
_DTYPES = {1: "uint8", 2: "uint16", 4: "float32", 8: "float64", 16: "complex128"}
"""Dtype that is written for items of a size in bytes, because the true dtype is unknown."""
_NAMES = ("angles", "rows", "columns")
_LENGTHS = {
    "n": "{0}",
    "n//2": "({0} // 2)",
    "even(n)": "({0} + {0} % 2)",
    "fast(n)": "fast_length({0})",
    "pow2(n)": "(1 << ({0} - 1).bit_length())",
    "pow2(n+1)": "(1 << {0}.bit_length())",
    "pow2(2n)": "(2 << ({0} - 1).bit_length())",
    "n*n": "{0}**2",
    "even(n)*even(n)": "({0} + {0} % 2)**2",
}
"""Python code of the lengths in `size_model.LENGTHS`, except 1."""
_COUNTS = {
    "n": "{0}",
    "ceil(n/k)": "-(-{0} // {1})",
    "n//k": "({0} // {1})",
    "min(n,k)": "min({0}, {1})",
    "n*n": "{0}**2",
    "pow2(n)": "(1 << ({0} - 1).bit_length())",
}
"""Python code of the counts in `formula.COUNTS` that never decrease."""


@dataclass(frozen=True, slots=True)
class SuggestedLedger:
    """Ledger function as text, with the measurements."""

    text: str
    """Python source of the function, with its imports."""
    device: Device
    """Device on which the method was run."""
    shapes: tuple[tuple[int, int, int], ...]
    """Shapes of the measured blocks (angles, rows, columns)."""
    peaks_bytes: tuple[int, ...]
    """Measured peak on each block."""
    ratios: tuple[float, ...]
    """Estimated over measured peak on each block."""

    def estimator(self) -> LedgerEstimator:
        """The ledger, ready to be declared as ``calc_max_slices``."""
        return _executed(self.text)

    def __str__(self) -> str:
        low, high = min(self.ratios), max(self.ratios)
        shapes = ", ".join("x".join(map(str, shape)) for shape in self.shapes[:3])
        return (
            f"{self.text}\n# {low:.3f} to {high:.3f} of the peaks measured on "
            f"{len(self.shapes)} blocks ({shapes} ...)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Text and figures as plain values for JSON."""
        runs = zip(self.shapes, self.peaks_bytes, self.ratios, strict=True)
        return {
            "ledger": self.text,
            "device": self.device,
            "runs": [
                {"shape": list(shape), "peak_bytes": n_bytes, "ratio": round(ratio, 6)}
                for shape, n_bytes, ratio in runs
            ],
        }


def suggest_ledger(
    method: Callable[..., Any] | MethodMeta | str,
    dtype: DTypeLike = "float32",
    parameters: Mapping[str, Any] | None = None,
    device: str = "auto",
    slice_dim: int | None = None,
) -> SuggestedLedger:
    """Write the ledger of a method from its allocations on a few small blocks.

    Parameters
    ----------
    method : callable, MethodMeta or str
        A registered function, its ``.meta``, or its name. For any other function, the name as in
        ``"scipy.ndimage:gaussian_filter"``.
    dtype : dtype-like
        Dtype of the input. The ledger raises for any other dtype.
    parameters : mapping, optional
        Parameters of the method, for which the ledger is valid.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    slice_dim : int, optional
        Axis of the slices. By default, the first that the pattern allows.

    Returns
    -------
    SuggestedLedger
        Python code of the ledger, with the measurements.

    Raises
    ------
    EstimatorError
        If the method runs on too few of the blocks.
    DeviceError
        If no meter can measure its memory.
    UsageError
        If SciPy is not installed, or the method is invalid.
    """
    if importlib.util.find_spec("scipy") is None:
        raise UsageError("a ledger is fitted by SciPy, which is not installed: pip install scipy")
    meta = find_method(method)
    axis = meta.slice_dims()[0] if slice_dim is None else slice_dim
    gc.collect()
    with quick_collections():
        return _Suggestion(meta, as_dtype(dtype), parameters or {}, device, axis).ledger()


@dataclass(frozen=True, slots=True)
class _Run:
    """A call of the method."""

    n_slices: int
    other_dims: Dims
    peak_bytes: int
    alive: Mapping[CallSite, tuple[int, ...]]
    """Bytes of each allocation alive at the peak, in order, by call site."""


class _Suggestion:
    """Run of a method on small blocks, and the ledger that is written from it."""

    def __init__(
        self,
        meta: MethodMeta,
        dtype: np.dtype[Any],
        parameters: Mapping[str, Any],
        device: str,
        slice_dim: int,
    ) -> None:
        self.meta, self.dtype, self.parameters = meta, dtype, dict(parameters)
        self.device, self.slice_dim = device, slice_dim
        self.kind: Device = select_backend(device).kind
        other_names = [name for axis, name in enumerate(_NAMES) if axis != slice_dim]
        self.names = (_NAMES[slice_dim], *other_names)
        """Names of the slices and of the two other dims."""

    def ledger(self) -> SuggestedLedger:
        runs = self._runs()
        lines: list[str] = []
        other_sites: list[CallSite] = []
        for site in dict.fromkeys(site for run in runs for site in run.alive):
            for sizes in _terms_of(site, runs):
                if max(sizes) < _LEAST_BYTES:
                    continue
                call = self._formula(site, sizes, runs)
                if call is None:
                    other_sites.append(site)
                else:
                    lines.append(_commented(call, _comment(site)))
        text = self._text(lines)
        lacking = [run.peak_bytes - self._peak(text, run) for run in runs]
        if max(lacking) > 0:
            places = filter(None, dict.fromkeys(_comment(site) for site in other_sites))
            about = list(places) or ["allocations without a line of code"]
            lines += [f"    # at most: {place}"[:100] for place in about]
            lines.append(f"    m.alloc_bytes({self._bound(lacking, runs)})")
            text = self._text(lines)
        return SuggestedLedger(
            text,
            self.kind,
            tuple(block_shape(self.slice_dim, run.n_slices, run.other_dims) for run in runs),
            tuple(run.peak_bytes for run in runs),
            tuple(self._peak(text, run) / run.peak_bytes for run in runs),
        )

    def _runs(self) -> list[_Run]:
        runs: list[_Run] = []
        error: Exception | None = None
        with suppress(Exception):  # imports and compiles; errors for these dims are handled below
            self._run(*_WARM_UP)
        for dims in _OTHER_DIMS:
            try:
                runs += [self._run(n, dims) for n in _SLICES]
            except MaxslicesError:
                raise
            except Exception as raised:  # noqa: BLE001 - a method may refuse dims in any way
                error = raised
        if len(runs) < _LEAST_SIZES * len(_SLICES):
            assert error is not None  # otherwise all of them ran
            raise EstimatorError(
                f"{self.meta.full_name} runs with fewer than {_LEAST_SIZES} of the sizes "
                f"{', '.join(f'{a}x{b}' for a, b in _OTHER_DIMS)}: {what_raised(error)}"
                f"{raised_at(error, self.meta.function)}"
            )
        return runs

    def _run(self, n_slices: int, dims: Dims) -> _Run:
        spec = ArraySpec(block_shape(self.slice_dim, n_slices, dims), self.dtype)
        trial = trial_of(self.meta, spec, self.slice_dim, self.device, self.parameters)
        trial.is_recorded = True
        with tracemalloc_on(self.kind):
            trial.prepare()
            before = trial.alive_bytes()
            call = trial.once()
            cached_bytes = max(0, trial.alive_bytes() - before)
            call = min(call, trial.once(), key=lambda each: each.n_bytes)
        if trial.peak is None or trial.peak.counted_bytes is None:
            reasons = "; ".join(call.unseen)
            raise DeviceError(f"{self.meta.full_name}: no meter gives its memory: {reasons}")
        peak_bytes = call.n_bytes - call.outside_bytes + cached_bytes
        alive = trial.peak.alive or (Alive(trial.nbytes(n_slices), INPUT),)
        return _Run(trial.n_slices, dims, peak_bytes, _by_site(alive))

    def _formula(self, site: CallSite, sizes: Sequence[int], runs: Sequence[_Run]) -> str | None:
        """Ledger call for bytes that were alive at each peak, or None without a formula."""
        growths = {}
        for dims in dict.fromkeys(run.other_dims for run in runs):
            seen = zip(runs, sizes, strict=True)
            points = {run.n_slices: size for run, size in seen if run.other_dims == dims}
            growth = first_fit(points)
            if growth is None or not all(points.values()):
                return None
            if any(growth.at(n) != n_bytes for n, n_bytes in points.items()):
                return None
            growths[dims] = growth
        counts = {(g.counted, g.k) for g in growths.values() if g.step}
        if len(counts) > 1 or not all(count in _COUNTS for count, _ in counts):
            return None
        start = find_formula({dims: growth.start for dims, growth in growths.items()})
        step = find_formula({dims: growth.step for dims, growth in growths.items()})
        if start is None or step is None:
            return None
        if min((factor for factor, _, _ in (*start.parts, *step.parts)), default=0) < 0:
            return None  # it would be negative for other sizes
        count, k = counts.pop() if counts else ("1", 0)
        counted = _COUNTS[count].format(self.names[0], k) if step.parts else ""
        if site == INPUT:
            return "m.alloc(shape, dtype)"
        if len(step.parts) == 1 and not start.parts:
            return self._array(counted, step)
        if len(start.parts) == 1 and not step.parts:
            return self._array("", start)
        terms = [*self._terms(start, ""), *self._terms(step, counted)]
        return f"m.alloc_bytes({' + '.join(terms)})"

    def _array(self, counted: str, formula: SizeFormula) -> str:
        """Array of a shape and dtype for one product."""
        ((factor, first, second),) = formula.parts
        lengths = first, second
        if not counted and set(lengths) == {"1"}:
            return f"m.alloc_bytes({factor:_})"
        itemsize = max(size for size in (8, 4, 2, 1) if factor % size == 0)
        if factor == max(_DTYPES):
            itemsize = factor
        axes = [
            _LENGTHS[length].format(name).removeprefix("(").removesuffix(")")
            if length in ("n//2", "even(n)")
            else _LENGTHS[length].format(name)
            for length, name in zip(lengths, self.names[1:], strict=True)
            if length != "1"
        ]
        if counted:
            axes.insert(self.slice_dim if len(axes) == 2 else 0, counted)
        many = factor // itemsize
        if many > 1:
            axes.insert(0, str(many))
        shape = "shape" if tuple(axes) == _NAMES else f"({', '.join(axes)}{',' * (len(axes) == 1)})"
        return f'm.alloc({shape}, "{_DTYPES[itemsize]}")'

    def _terms(self, formula: SizeFormula, counted: str) -> Iterator[str]:
        for factor, first, second in formula.parts:
            lengths = first, second
            texts = [
                _LENGTHS[length].format(name)
                for length, name in zip(lengths, self.names[1:], strict=True)
                if length != "1"
            ]
            yield " * ".join([str(factor), *filter(None, [counted]), *texts])

    def _bound(self, lacking: Sequence[int], runs: Sequence[_Run]) -> str:
        """Upper bound of the missing memory in every block: a nonnegative sum of products of dims.

        Few terms are tried first, because many terms fit the measured sizes closely but extrapolate
        badly.
        """
        from scipy.optimize import nnls

        wanted = np.maximum(np.array(lacking, np.float64), 0)
        weights = 1 / np.array([run.peak_bytes for run in runs], np.float64)
        dims = np.array([(run.n_slices, *run.other_dims) for run in runs], np.float64)
        best = math.inf, ""
        for powers in _BOUNDS:
            table = np.stack([np.prod(dims ** np.array(power), axis=1) for power in powers], axis=1)
            try:
                factors, _ = nnls(table * weights[:, None], wanted * weights)
            except RuntimeError:  # not converged: other terms may
                continue
            if not factors.any():
                factors[-1] = 1.0
            factors *= float(np.max(wanted / (table @ factors))) * _MARGIN
            excess = float(np.max((table @ factors - wanted) * weights))
            if excess < best[0] / 2:
                best = excess, self._bound_text(factors.tolist(), powers)
            if excess <= _PEAK_TOLERANCE:
                break
        return best[1]

    def _bound_text(self, factors: list[float], powers: Sequence[tuple[int, int, int]]) -> str:
        if len(powers) == 1:
            return f"{math.ceil(factors[0] / _WHOLE_BYTES) * _WHOLE_BYTES:_}"
        terms = [
            " * ".join([f"{factor:.4g}", *(n for n, p in zip(self.names, power, strict=True) if p)])
            for factor, power in zip(factors, powers, strict=True)
            if factor > 1e-9
        ]
        return f"math.ceil({' + '.join(terms)})"

    def _text(self, lines: Sequence[str]) -> str:
        body = "\n".join(lines)
        written = [line.split("  # ")[0] for line in body.splitlines()]
        code = "\n".join(line for line in written if not line.startswith("    #"))
        imports = ["from maxslices import from_ledger"]
        if "math." in code:
            imports.insert(0, "import math\n")
        if "fast_length(" in code:
            imports.append("from maxslices.estimate.formula import fast_length")
        arguments = "".join(f", {name}={value!r}" for name, value in self.parameters.items())
        dims = [name if name in code else "_" for name in _NAMES]
        head = [
            *imports,
            "",
            "",
            "@from_ledger",
            "def needs(m, shape, dtype):",
            f'    """Allocations of {self.meta.name} of {self.dtype} data{arguments}, as seen on '
            f'{self.kind}."""',
            f'    if dtype.name != "{self.dtype}":',
            f'        raise ValueError(f"for {self.dtype} data: suggest a ledger with --dtype '
            '{dtype}")',
        ]
        if set(dims) != {"_"}:
            head.append(f"    {', '.join(dims)} = shape")
        return "\n".join([*head, body]) + "\n"

    def _peak(self, text: str, run: _Run) -> int:
        ledger = Ledger(self.kind)
        shape = block_shape(self.slice_dim, run.n_slices, run.other_dims)
        _executed(text).function(ledger, shape, self.dtype)
        return ledger.peak_bytes


def _by_site(alive: Sequence[Alive]) -> dict[CallSite, tuple[int, ...]]:
    """Bytes of each allocation, by call site."""
    by_site: dict[CallSite, tuple[int, ...]] = {}
    for row in alive:
        by_site[row.where] = (*by_site.get(row.where, ()), row.n_bytes)
    return by_site


def _terms_of(site: CallSite, runs: Sequence[_Run]) -> list[tuple[int, ...]]:
    """Bytes of each allocation of a site in each run, or of their sum if their number differs."""
    alive = [run.alive.get(site, ()) for run in runs]
    if len({len(sizes) for sizes in alive}) == 1:
        return list(zip(*alive, strict=True))
    return [tuple(map(sum, alive))]


def _comment(site: CallSite) -> str:
    """File, line and code of a site, or "" without a line of the method."""
    if site == INPUT:
        return "the input"
    if site.filename in ("", named_method.__file__) or is_call(site):  # compiled code
        return ""
    return f"{os.path.basename(site.filename)}:{site.line}: {site.code}"


def _commented(call: str, comment: str) -> str:
    """Line of a ledger with a comment, which is placed above a long line."""
    line = f"    {call}"
    if not comment:
        return line
    if len(line) + len(comment) + 4 > 100:
        return f"    # {comment}"[:100] + f"\n{line}"
    return f"{line}  # {comment}"


def _executed(text: str) -> LedgerEstimator:
    scope: dict[str, Any] = {}
    exec(compile(text, "<suggested ledger>", "exec"), scope)
    (estimator,) = (value for value in scope.values() if isinstance(value, LedgerEstimator))
    return estimator
