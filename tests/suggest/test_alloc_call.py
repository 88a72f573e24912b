"""Sizes that were seen in a few blocks become formulas, and hold at further ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
from scipy.fft import next_fast_len

from maxslices.core.ledger import Ledger
from maxslices.suggest.alloc_call import SizeFinder
from maxslices.suggest.dim_expressions import Blocks

SHAPES = (
    (7, 109, 139), (11, 103, 67), (37, 71, 53), (67, 59, 97), (13, 199, 113), (23, 62, 178),
    (32, 86, 122), (53, 107, 74), (41, 82, 127), (29, 157, 109), (31, 283, 337), (17, 521, 454),
)  # fmt: skip
FURTHER = ((60, 250, 301), (19, 1024, 1100))
FINDER = SizeFinder(Blocks(SHAPES, 0))


def bytes_at(formula, shape):
    scope = dict(zip(("angles", "rows", "columns"), shape, strict=True))
    ledger = Ledger("cpu")
    scope |= {"m": ledger, "math": math, "next_fast_len": next_fast_len, "shape": shape}
    exec(formula.call, scope)
    return ledger.in_use_bytes


@pytest.mark.parametrize(
    "size, call",
    [
        (lambda n, r, c: 4 * n * r * c, 'm.alloc(shape, "float32")'),
        (lambda n, r, c: 8 * r * c, 'm.alloc((rows, columns), "float64")'),
        (
            lambda n, r, c: 8 * n * r * (c // 2 + 1),
            'm.alloc((angles, rows, columns // 2 + 1), "float64")',
        ),
        (lambda n, r, c: 12 * n * c, 'm.alloc((3, angles, columns), "float32")'),
        (lambda n, r, c: 40_000, 'm.alloc(5000, "float64")'),
        (lambda n, r, c: 4 * min(n, 16) * c * c, None),
        (lambda n, r, c: 16 * n * next_fast_len(r) * next_fast_len(c), None),
        (lambda n, r, c: 4 * n * (r + 10) * (c + 6), None),
        (lambda n, r, c: n * r * c + 2 * r, None),
        (lambda n, r, c: 4 * n * (1 << (r - 1).bit_length()), None),
        (lambda n, r, c: 4 * n * max(r, c) ** 2, None),
        (lambda n, r, c: 8 * n * min(r, c) * (min(r, c) // 2 + 1), None),
        (lambda n, r, c: 256 * n * ((2 << (r - 1).bit_length()) // 2 + 1), None),
    ],
)
def test_sizes(size, call):
    formula = FINDER.formula([size(*shape) for shape in SHAPES], [], None)
    if call is not None:
        assert formula.call == call
    assert not formula.is_bound
    for shape in (*SHAPES, *FURTHER):
        assert bytes_at(formula, shape) == size(*shape)


def test_the_shape_of_an_array_tells_its_axes():
    arrays = [f"complex64 {c}x{n}x{r + 7}" for n, r, c in SHAPES]
    formula = FINDER.formula([8 * c * n * (r + 7) for n, r, c in SHAPES], arrays, None)
    assert formula.call == 'm.alloc((columns, angles, rows + 7), "complex64")'


def test_what_grows_with_the_itemsize_is_said_to():
    formula = FINDER.formula([4 * math.prod(shape) for shape in SHAPES], [], 4)
    assert formula.call == "m.alloc(shape, dtype)"


def test_parts_up_to_a_size_are_capped():
    def size(n, r, c):
        return min(4 * n * r * c, 3_000_000)

    formula = FINDER.formula([size(*shape) for shape in SHAPES], [], None)
    assert formula.call == "m.alloc_bytes(min(4 * angles * rows * columns, 3_000_000))"


def test_what_has_no_formula_is_a_bound():
    rng = np.random.default_rng(0)
    sizes = [int(math.prod(shape) * rng.uniform(3.9, 4)) for shape in SHAPES]
    formula = FINDER.formula(sizes, [], None)
    assert formula.is_bound
    for shape, n_bytes in zip(SHAPES, sizes, strict=True):
        assert n_bytes <= bytes_at(formula, shape) <= 1.1 * n_bytes


@pytest.mark.parametrize("padding", [0, 1])
def test_what_is_worked_on_in_whole_rows_up_to_a_number_of_values_is_capped(padding):
    """As CuPy sorts: 2**22 values at a time, and scratch that is padded."""

    def size(n, r, c):
        values = min(n * r, 2**20 // c) * c
        return 16 * values + padding * (255 + 256 * -(-values // 2**15))

    formula = FINDER.formula([size(*shape) for shape in SHAPES], [], None)
    assert formula.is_bound
    for shape in (*SHAPES, *FURTHER):
        assert (
            size(*shape) <= bytes_at(formula, shape) <= (1.07 if padding else 1.01) * size(*shape)
        )


def test_what_is_worked_on_in_whole_slices_is_capped():
    """What is left out differs by up to a slice, so that no two blocks have the same cap."""

    def size(n, r, c):
        values = min(n, 2**20 // (r * c)) * r * c
        return 8 * values + 1024 * -(-values // 4224) + 2**14

    formula = FINDER.formula([size(*shape) for shape in SHAPES], [], None)
    for shape in (*SHAPES, (60, 250, 301), (9, 250, 301), (40, 127, 140)):
        assert size(*shape) <= bytes_at(formula, shape) <= 1.08 * size(*shape)


def test_what_is_empty_takes_nothing():
    assert bytes_at(FINDER.formula([0] * len(SHAPES), [], None), SHAPES[0]) == 0


@pytest.mark.parametrize(
    "passes, text",
    [
        (lambda n, r, c: n, "angles"),
        (lambda n, r, c: n - 1, "angles - 1"),
        (lambda n, r, c: -(-n // 16), "-(-angles // 16)"),
        (lambda n, r, c: 2 * r + 1, "2 * rows + 1"),
        (lambda n, r, c: 9, "9"),
        (lambda n, r, c: (n * 7919) % 10, None),
    ],
)
def test_lengths(passes, text):
    assert FINDER.blocks.length([passes(*shape) for shape in SHAPES]) == text


def test_terms_with_which_no_fit_converges_are_left_out(monkeypatch):
    original = scipy.optimize.nnls

    def failing(table, values):
        if table.shape[1] == 3:
            raise RuntimeError("Maximum number of iterations reached.")
        return original(table, values)

    monkeypatch.setattr(scipy.optimize, "nnls", failing)
    rng = np.random.default_rng(0)
    sizes = [int(math.prod(shape) * rng.uniform(3, 4)) for shape in SHAPES]
    formula = FINDER.formula(sizes, [], None)
    assert all(bytes_at(formula, shape) >= size for shape, size in zip(SHAPES, sizes, strict=True))
