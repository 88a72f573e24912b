"""The size of an allocation as a formula of a block's dims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .dim_expressions import DIMS, Blocks, Length, is_atom

_ITEM = {1: "uint8", 2: "uint16", 4: "float32", 8: "float64", 16: "complex128"}
"""Dtype that is written for an array of which only the bytes are known."""
_CONSTANT, _SLICE, _ALL = (0, 0, 0), (0, 1, 1), (1, 1, 1)
_LINES = ((1, 1, 0), (1, 0, 1), (0, 1, 0), (0, 0, 1))
_SQUARES = ((0, 2, 0), (0, 0, 2), (1, 2, 0), (1, 0, 2))
_BOUNDS: tuple[tuple[tuple[int, ...], ...], ...] = (
    (_CONSTANT,),
    (_ALL, _CONSTANT),
    (_ALL, _SLICE, _CONSTANT),
    (_ALL, _SLICE, _CONSTANT, *_LINES),
    (_ALL, _SLICE, _CONSTANT, *_LINES, *_SQUARES),
)
"""Terms of bounds, as powers of (slices, first, second other dim)."""
CLOSE = 0.02
"""Excess of a bound, of the size or the peak, with which no further terms are tried."""
_CAP_SHARE = 0.4
"""Least share of the blocks in which a size must follow its formula, and not its cap."""
_CAP_ROOM = 1.05
"""Room above a cap that was seen, at most up to the next power of two: what works on so many values
at a time does so in whole rows or slices, and leaves out up to one (4 % of 2**23 values in slices
of 587 x 601)."""
_MOST_TERMS = 4
"""Terms of a sum of products: ``(rows + 2 * p) * (columns + 2 * q)`` has four."""


@dataclass(frozen=True, slots=True)
class AllocCall:
    """Arguments of `Ledger.alloc`, or of `Ledger.alloc_bytes`."""

    shape: tuple[str, ...]
    """Expressions of the axes; empty if only a number of bytes is known."""
    dtype: str
    """Dtype as Python; empty without a shape."""
    n_bytes: str = ""
    """Expression of the bytes, without a shape."""
    is_bound: bool = False
    """True if the size is at most this: no formula gives it."""

    def times(self, count: str) -> AllocCall:
        """Formula of so many of these."""
        if self.shape:
            return replace(self, shape=(count, *self.shape))
        return replace(self, n_bytes=f"({count}) * ({self.n_bytes})")

    @property
    def call(self) -> str:
        """Call on a ledger named ``m``."""
        if not self.shape:
            return f"m.alloc_bytes({self.n_bytes})"
        axes = f"({', '.join(self.shape)})" if len(self.shape) > 1 else self.shape[0]
        if self.shape == DIMS:
            axes = "shape"
        return f"m.alloc({axes}, {self.dtype})"


class SizeFinder:
    """Finds formulas for sizes that were seen in a few blocks.

    Parameters
    ----------
    blocks : Blocks
        The blocks.
    """

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._known: dict[tuple[int, ...], tuple[tuple[Length, ...], int] | None] = {}

    def formula(
        self, sizes: Sequence[int], arrays: Sequence[str], input_itemsize: int | None
    ) -> AllocCall:
        """Formula of an allocation's bytes.

        Parameters
        ----------
        sizes : sequence of int
            Bytes in each block.
        arrays : sequence of str
            "dtype AxBxC" of the array in each block; "" where it is not known.
        input_itemsize : int, optional
            Bytes of an element of the input, if the size is known to grow with it.
        """
        named = self._of_array(sizes, arrays, input_itemsize)
        if named is not None:
            return named
        found = self._product(tuple(sizes))
        if found is not None:
            lengths, factor = found
            return _as_array([length.text for length in lengths], factor, input_itemsize)
        text = self._sum(tuple(sizes))
        if text is not None:
            return AllocCall((), "", text)
        return self._capped(sizes) or self._bound(sizes)

    def product(self, values: Sequence[int]) -> list[str] | None:
        """Lengths, and perhaps a factor, whose product was seen; None if there are none."""
        found = self._product(tuple(values))
        if found is None:
            return None
        lengths, factor = found
        texts = [length.text for length in lengths]
        return [str(factor), *texts] if factor > 1 or not texts else texts

    def bound(self, sizes: Sequence[int], peaks: Sequence[int] = ()) -> AllocCall:
        """Formula that is never below sizes known roughly; close beside `peaks`, if given."""
        return self._bound(sizes, peaks)

    def _of_array(
        self, sizes: Sequence[int], arrays: Sequence[str], input_itemsize: int | None
    ) -> AllocCall | None:
        parsed = [_parse(text) for text in arrays]
        if not parsed or any(each is None for each in parsed):
            return None
        known = [each for each in parsed if each is not None]
        if len({(dtype, len(shape)) for dtype, shape in known}) != 1:
            return None
        dtype = known[0][0]
        for size, (_, shape) in zip(sizes, known, strict=True):
            if math.prod(shape) * np.dtype(dtype).itemsize != size:
                return None
        axes = [self.blocks.length(axis) for axis in zip(*(s for _, s in known), strict=True)]
        texts = [axis for axis in axes if axis is not None]
        if len(texts) != len(axes) or not texts:
            return None
        if input_itemsize == np.dtype(dtype).itemsize:
            return AllocCall(tuple(texts), "dtype")
        return AllocCall(tuple(texts), f'"{dtype}"')

    def _product(self, sizes: tuple[int, ...]) -> tuple[tuple[Length, ...], int] | None:
        """Lengths and a whole factor whose product is the size; the fewest lengths first."""
        if sizes not in self._known:
            self._known[sizes] = next(self._products(sizes), None)
        return self._known[sizes]

    def _products(self, sizes: tuple[int, ...]) -> Iterator[tuple[tuple[Length, ...], int]]:
        factors, rest = np.divmod(sizes[0], self._table[:, 0])
        fits = (rest == 0) & (factors > 0)
        fits &= np.all(self._table * factors[:, None] == np.array(sizes, np.int64), axis=1)
        for index in np.flatnonzero(fits).tolist():
            yield self._candidates[index], int(factors[index])

    @cached_property
    def _candidates(self) -> list[tuple[Length, ...]]:
        """Products of up to three lengths, at most one of the slices', the simplest first."""
        variants, axis = self.blocks.variants, self.blocks.slice_dim
        others = [length for i in range(3) if i != axis for length in variants[i]]
        pairs = itertools.combinations_with_replacement(others, 2)
        rests: list[tuple[Length, ...]] = [(), *((length,) for length in others), *pairs]
        of_slices: list[tuple[Length, ...]] = [(), *((length,) for length in variants[axis])]
        found: list[tuple[Length, ...]] = [
            (*slices, *rest) for slices in of_slices for rest in rests
        ]
        if axis == 1:  # in the order of the array's axes
            found = [(each[1], each[0], *each[2:]) if len(each) == 3 else each for each in found]
        return sorted(
            found,
            key=lambda each: (
                len(each)
                + sum(4 + len(x.text) for x in each if x.text not in DIMS)
                + 2 * (len({x.text for x in each}) < len(each))
            ),
        )

    @cached_property
    def _table(self) -> np.ndarray[Any, Any]:
        """Value of each candidate in each block."""
        ones = np.ones(len(self.blocks.shapes), np.int64)
        rows = []
        for lengths in self._candidates:
            row = ones.copy()
            for length in lengths:
                row *= np.array(length.values, np.int64)
            rows.append(row)
        return np.stack(rows)

    def _sum(self, sizes: tuple[int, ...]) -> str | None:
        """Sum of products of dims with whole factors: padded arrays, several in one."""
        powers = list(itertools.product((0, 1), repeat=3))
        for variants in itertools.product(*(v[:4] for v in self.blocks.variants)):
            table = np.array([v.values for v in variants], np.float64).T
            terms = np.stack([np.prod(table ** np.array(p), axis=1) for p in powers], axis=1)
            if len(sizes) <= len(powers):
                return None
            factors = np.linalg.lstsq(terms, np.array(sizes, np.float64), rcond=None)[0]
            whole = np.rint(factors).astype(np.int64)
            if not np.array_equal(terms.astype(np.int64) @ whole, np.array(sizes)):
                continue
            if np.count_nonzero(whole) <= _MOST_TERMS * 2:
                return _sum_text(whole, powers, [v.text for v in variants])
        return None

    def _capped(self, sizes: Sequence[int]) -> AllocCall | None:
        """The smaller of a product of lengths and a constant: parts of a block up to a size."""
        values, most = np.array(sizes, np.int64), max(sizes)
        smallest = int(np.argmin(values / self._table[self._whole]))
        for anchor in {smallest, int(np.argmin(values))}:
            factors, rest = np.divmod(int(values[anchor]), self._table[:, anchor])
            products = self._table * factors[:, None]
            equal = products == values
            fits = (rest == 0) & (factors > 0) & np.all(equal | (products > values), axis=1)
            fits &= np.count_nonzero(equal, axis=1) >= _CAP_SHARE * len(sizes)
            for index in np.flatnonzero(fits).tolist()[:1]:
                lengths = [length.text for length in self._candidates[index]]
                texts = [
                    str(int(factors[index])),
                    *(t if is_atom(t) else f"({t})" for t in lengths),
                ]
                others = values[~equal[index]]
                cap = int(others.max()) if len(others) else most
                if int(values[equal[index]].max()) <= cap:
                    differs = len(set(others.tolist())) > 1
                    cap = _roomy(cap) if differs else cap
                    text = f"min({' * '.join(texts)}, {cap:_})"
                    return AllocCall((), "", text, is_bound=differs)
        return None

    @cached_property
    def _whole(self) -> int:
        """Index of the product of all dims among the candidates."""
        return next(
            i for i, each in enumerate(self._candidates) if {x.text for x in each} == set(DIMS)
        )

    def _bound(self, sizes: Sequence[int], peaks: Sequence[int] = ()) -> AllocCall:
        """Sum of products of dims that covers all sizes, perhaps up to a cap.

        What works on so many values at a time takes nearly the same in all blocks with more.
        """
        values = np.array(sizes, np.float64)
        weights = 1 / np.maximum(1.0, np.array(peaks or sizes, np.float64))
        order = np.argsort(-values)
        text = ""
        for n_full in range(int((1 - _CAP_SHARE) * len(sizes)) + 1):
            below, full = order[n_full:], order[:n_full]
            excess, found, bound = self._covering(values, weights, below)
            if excess <= CLOSE and np.all(bound[full] >= values[full]):
                text = f"min({found}, {_roomy(max(sizes)):_})" if n_full else found
                break
            text = text or found
        return AllocCall((), "", text, is_bound=True)

    def _covering(
        self,
        values: np.ndarray[Any, Any],
        weights: np.ndarray[Any, Any],
        among: np.ndarray[Any, Any],
    ) -> tuple[float, str, np.ndarray[Any, Any]]:
        """Sum of products of dims, factors at least 0, scaled until it covers some blocks.

        Its excess there, its text, and its value in every block. Few terms are tried first: many
        follow a few sizes closely, and go astray beyond.
        """
        from scipy.optimize import nnls

        found: list[tuple[float, str, np.ndarray[Any, Any]]] = []
        for powers in _BOUNDS:
            table = np.stack([self._monomial(power) for power in powers], axis=1)
            try:
                factors, _ = nnls((table * weights[:, None])[among], (values * weights)[among])
            except RuntimeError:  # it did not converge: other terms may
                continue
            fitted = np.maximum(table @ factors, 1e-9)
            if not factors.any():
                factors, fitted = factors + 1e-12, table.sum(axis=1) * 1e-12
            # Four digits are written.
            factors = factors * float(np.max((values / fitted)[among])) * 1.0005
            bound = table @ factors
            excess = float(np.max(((bound - values) * weights)[among]))
            if not found or excess < found[-1][0] / 2:
                found.append((excess, self._bound_text(factors.tolist(), powers), bound))
            if excess <= CLOSE:
                break
        return found[-1]

    def _bound_text(self, factors: list[float], powers: Sequence[tuple[int, ...]]) -> str:
        terms = [
            " * ".join(
                [
                    f"{factor:.4g}",
                    *(DIMS[a] for a, p in zip(self._axes, power, strict=True) for _ in range(p)),
                ]
            )
            for factor, power in zip(factors, powers, strict=True)
            if factor > 1e-9
        ]
        return f"math.ceil({' + '.join(terms) or 0})"

    @cached_property
    def _axes(self) -> tuple[int, ...]:
        """Axes, the slices' first."""
        axis = self.blocks.slice_dim
        return (axis, *(i for i in range(3) if i != axis))

    def _monomial(self, power: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Product of powers of slices and other dims, in each block."""
        found = np.ones(len(self.blocks.shapes))
        for axis, exponent in zip(self._axes, power, strict=True):
            found *= np.array(self.blocks.dims[axis], np.float64) ** exponent
        return found


def _roomy(cap: int) -> int:
    """Cap with room."""
    return min(math.ceil(cap * _CAP_ROOM), 1 << (cap - 1).bit_length())


def _as_array(lengths: list[str], factor: int, input_itemsize: int | None) -> AllocCall:
    """Shape and dtype for a product of lengths and bytes."""
    if input_itemsize and factor % input_itemsize == 0:
        itemsize, dtype = input_itemsize, "dtype"
    else:
        itemsize = factor if factor in _ITEM else max(n for n in (8, 4, 2, 1) if factor % n == 0)
        dtype = f'"{_ITEM[itemsize]}"'
    many = factor // itemsize
    axes = [*([str(many)] if many > 1 or not lengths else []), *lengths]
    return AllocCall(tuple(axes), dtype)


def _parse(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Dtype and shape of an array as `describe_array` writes them."""
    dtype, _, shape = text.partition(" ")
    try:
        return dtype, tuple(int(n) for n in shape.split("x"))
    except ValueError:
        return None


def _sum_text(
    factors: np.ndarray[Any, Any], powers: list[tuple[int, ...]], names: list[str]
) -> str:
    parts = []
    for factor, power in reversed(list(zip(factors.tolist(), powers, strict=True))):
        if factor:
            used = [name for name, p in zip(names, power, strict=True) if p]
            texts = [name if is_atom(name) else f"({name})" for name in used]
            parts.append((factor < 0, " * ".join([str(abs(factor)), *texts])))
    text = " ".join(f"{'-' if negative else '+'} {part}" for negative, part in parts)
    return text.removeprefix("+ ") or "0"
