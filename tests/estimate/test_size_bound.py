"""Bounds of peaks for any detector, where no formula is exact."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxslices.core.memory_model import MemoryModel
from maxslices.estimate.any_size import SizeEvidence, fit_sizes
from maxslices.estimate.size_bound import FEW, MOST_ABOVE, SizeBound
from maxslices.estimate.size_model import SizeModel

from .recorded_sequences import recorded_sizes

SIZES = ((600, 640), (901, 1279), (1801, 2560), (721, 2001), (1801, 2048), (1501, 1601),
         (1200, 1920), (999, 2303), (1441, 1664))  # fmt: skip
OTHERS = ((1801, 2557), (1051, 1800), (2000, 4000))


def evidence(bytes_at, dims):
    model = MemoryModel(lambda n: bytes_at(n, *dims))
    return SizeEvidence(model, {n: bytes_at(n, *dims) for n in (3, 8, 100)}, None)


def sort_scratch(n, rows, columns):
    """Input, and the padded scratch of a sort of one slice."""
    return 4 * rows * columns * n + -(-24 * rows * columns // 4096) * 4112 + 17


def pairs(n, rows, columns):
    """A reconstruction of pairs of slices beside the input."""
    return 4 * rows * columns * n + 32 * columns * columns * (-(-n // 2)) + 40 * columns * columns


def halves(n, rows, columns):
    """A wavelet transform of odd lengths."""
    total = 4 * rows * columns * n
    while columns > 40:
        rows, columns = (rows + 31) // 2, (columns + 31) // 2
        total += 12 * rows * columns * n
    return total


def two_moments(n, rows, columns):
    """A filter, or the reconstruction after it, whichever takes more."""
    return max(20 * rows * columns * n + 11, (4 * rows + 8 * columns) * columns * n + 7)


@pytest.mark.parametrize("method", [sort_scratch, pairs, halves])
def test_a_bound_is_close_and_never_below_at_sizes_that_it_was_not_made_of(method):
    (found,) = fit_sizes({dims: evidence(method, dims) for dims in SIZES})
    assert isinstance(found.peaks, SizeBound)
    assert found.above <= MOST_ABOVE
    for dims in (*SIZES, *OTHERS):
        model = found.peaks.model_at(dims)
        for n in (*range(1, 40), 64, 77, 100, 128, 255, 700):
            right = method(n, *dims)
            assert right <= model.bytes(n)
            if n >= FEW:
                assert model.bytes(n) <= 1.02 * right
    again = SizeBound.from_plain(json.loads(json.dumps(found.peaks.as_plain())))
    assert again == found.peaks


def test_what_no_sum_of_products_gives_has_no_bound():
    def hashed(n, rows, columns):
        return 4 * rows * columns * n * (rows * 7919 % 5 + 1)

    assert not fit_sizes({dims: evidence(hashed, dims) for dims in SIZES})


def test_even_and_odd_dims_are_taken_apart():
    def padded_if_odd(n, rows, columns):
        return (4 + 4 * (columns % 2)) * rows * columns * n

    found = fit_sizes({dims: evidence(padded_if_odd, dims) for dims in SIZES})
    assert [each.parity for each in found] == [(None, 0), (None, 1)]
    for dims in OTHERS:
        (told,) = (each for each in found if each.is_told(dims))
        right = padded_if_odd(50, *dims)
        assert right <= told.peaks.model_at(dims).bytes(50) <= 1.01 * right


def test_small_sizes_that_differ_are_left_out():
    def constant_table(n, rows, columns):
        return max(4 * rows * columns * n, 40_000_000)

    (found,) = fit_sizes({dims: evidence(constant_table, dims) for dims in SIZES})
    assert found.is_told((1051, 1800))
    for n in (FEW, 33, 100):
        model = found.peaks.model_at((1801, 2557))
        assert model.bytes(n) >= constant_table(n, 1801, 2557)


@settings(max_examples=25)
@given(
    st.tuples(*[st.integers(0, 40)] * 3).filter(any),
    st.integers(0, 10**6),
    st.sampled_from(OTHERS),
    st.integers(1, 300),
)
def test_sums_of_products_are_bounded_anywhere(factors, fixed, dims, n):
    def method(slices, rows, columns):
        area, square, row = (f * slices for f in factors)
        return area * rows * columns + square * columns * columns + row * rows + fixed + 1

    found = SizeBound.fit({d: evidence(method, d).sizes for d in SIZES})
    if found is not None:
        right = method(n, *dims)
        assert right * (1 - 1e-9) <= found.model_at(dims).bytes(n)


def test_recorded_sorts_and_wavelets_have_bounds_within_a_thousandth():
    for name, peaks in recorded_sizes().items():
        if not name.startswith(("remove_stripe_based_sorting", "remove_stripe_fw")):
            continue
        recorded = {
            dims: SizeEvidence(MemoryModel(model.rising), {}, model)
            for dims, model in peaks.items()
        }
        (found,) = fit_sizes(recorded)
        assert not isinstance(found.peaks, SizeModel)
        assert found.above < 1e-3
