"""Lengths as expressions of a block's dims, found from a few blocks.

A length that was seen in several blocks (of an array's axis, a loop) is a dim, a dim with something
added, half of it, or the length that an FFT is padded to. The simplest expression that gives it for
all blocks is taken. Dims that share no factor leave little to chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

DIMS = ("angles", "rows", "columns")
"""Names of a block's dims in a ledger."""
_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Slices that methods work on at a time, by habit."""
_MOST_ADDED = 64
"""Most that is added to a dim before it is padded to an FFT's length."""


@dataclass(frozen=True, slots=True)
class Length:
    """An expression with its value in each block."""

    text: str
    """Python, of `DIMS` and `next_fast_len`."""
    values: tuple[int, ...]
    """Value in each block."""


@dataclass(frozen=True)
class Blocks:
    """Shapes of the blocks that a method was run on."""

    shapes: tuple[tuple[int, int, int], ...]
    """Axes (angles, rows, columns)."""
    slice_dim: int
    """Axis of the slices."""

    @cached_property
    def dims(self) -> tuple[tuple[int, ...], ...]:
        """Values of each dim."""
        return tuple(zip(*self.shapes, strict=True))

    @cached_property
    def variants(self) -> tuple[tuple[Length, ...], ...]:
        """For each dim what arrays have in its place, the likeliest first."""
        return tuple(tuple(self._variants_of(axis)) for axis in range(3))

    def _variants_of(self, axis: int) -> Iterator[Length]:
        name, dim = DIMS[axis], self.dims[axis]

        def made(text: str, values: Sequence[int]) -> Length:
            return Length(text, tuple(values))

        yield Length(name, dim)
        yield made(f"{name} // 2", [n // 2 for n in dim])
        yield made(f"({name} + 1) // 2", [(n + 1) // 2 for n in dim])
        square: list[tuple[str, list[int]]] = []
        if axis == 2:
            first = 1 - self.slice_dim
            pairs = list(zip(self.dims[first], dim, strict=True))
            square = [
                (f"max({DIMS[first]}, {name})", [max(pair) for pair in pairs]),
                (f"min({DIMS[first]}, {name})", [min(pair) for pair in pairs]),
            ]
        for text, values in (
            (name, dim),
            (f"({name} + {name} % 2)", [n + n % 2 for n in dim]),
            (f"next_fast_len({name})", [next_fast_len(n) for n in dim]),
            (f"next_fast_len({name}, True)", [next_fast_len(n, True) for n in dim]),
            (f"next_fast_len(2 * {name} - 1)", [next_fast_len(2 * n - 1) for n in dim]),
            (f"(1 << ({name} - 1).bit_length())", [1 << (n - 1).bit_length() for n in dim]),
            (f"(2 << ({name} - 1).bit_length())", [2 << (n - 1).bit_length() for n in dim]),
            *square,
        ):
            if text != name:
                yield made(
                    text.removeprefix("(").removesuffix(")") if text[0] == "(" else text, values
                )
            yield made(f"{text} // 2 + 1", [n // 2 + 1 for n in values])
        if axis == self.slice_dim:
            for chunk in _CHUNKS:
                yield made(f"min({name}, {chunk})", [min(n, chunk) for n in dim])

    def length(self, values: Sequence[int]) -> str | None:
        """Expression of a length that was seen; None if none fits."""
        found = tuple(values)
        if len(set(found)) == 1:
            return str(found[0])
        order = sorted(range(3), key=lambda axis: axis != self.slice_dim)
        for axis in order:
            for variant in self.variants[axis]:
                if variant.values == found:
                    return variant.text
        for axis in order:
            name, dim = DIMS[axis], self.dims[axis]
            for text in (_line(name, dim, found), _divided(name, dim, found)):
                if text is not None:
                    return text
        for axis in order:
            text = _padded(DIMS[axis], self.dims[axis], found)
            if text is not None:
                return text
        return None


def _line(name: str, dim: Sequence[int], found: Sequence[int]) -> str | None:
    """``a * dim + b`` in whole numbers."""
    low, high = min(range(len(dim)), key=dim.__getitem__), max(range(len(dim)), key=dim.__getitem__)
    if dim[low] == dim[high]:
        return None
    slope, rest = divmod(found[high] - found[low], dim[high] - dim[low])
    if rest or slope <= 0:
        return None
    added = found[low] - slope * dim[low]
    if any(slope * n + added != value for n, value in zip(dim, found, strict=True)):
        return None
    factor = name if slope == 1 else f"{slope} * {name}"
    return factor if not added else f"{factor} {'+-'[added < 0]} {abs(added)}"


def _divided(name: str, dim: Sequence[int], found: Sequence[int]) -> str | None:
    """``dim`` in parts of a size, rounded up, perhaps one part fewer."""
    for size in range(2, max(dim) + 1):
        for fewer in (0, 1):
            if all(-(-n // size) - fewer == value for n, value in zip(dim, found, strict=True)):
                return f"-(-{name} // {size})" + (" - 1" if fewer else "")
    return None


def _padded(name: str, dim: Sequence[int], found: Sequence[int]) -> str | None:
    """An FFT's length, or a power of two, of at least ``dim`` with something added."""
    for added in range(1, _MOST_ADDED):
        pairs = [(n + added, value) for n, value in zip(dim, found, strict=True)]
        if all(next_fast_len(n) == value for n, value in pairs):
            return f"next_fast_len({name} + {added})"
        if all(1 << (n - 1).bit_length() == value for n, value in pairs):
            return f"1 << ({name} + {added - 1}).bit_length()"
    return None


def next_fast_len(target: int, real: bool = False) -> int:
    """Length of at least `target` whose FFT is fast, as SciPy has it."""
    import scipy.fft

    return int(scipy.fft.next_fast_len(target, real))


def is_atom(text: str) -> bool:
    """True if an expression can be multiplied as it stands."""
    if text.isidentifier() or text.isdigit():
        return True
    calls = ("next_fast_len(", "min(", "max(")
    return text.startswith(calls) and text.endswith(")") and text.count("(") == 1
