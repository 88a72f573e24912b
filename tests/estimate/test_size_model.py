"""Peaks for any detector from those at four sizes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from maxslices.core.memory_model import MemoryModel
from maxslices.estimate.size_model import (
    LENGTHS,
    SizeFormula,
    SizeModel,
    find_formula,
    upper_line,
)  # fmt: skip
from maxslices.system.plain_records import from_plain, to_plain

from .record_cases import OTHERS, SIZES, peaks, rfft, strange
from .recorded_sequences import recorded_sizes

SLICES = (1, 2, 3, 5, 8, 40, 1000)


def test_four_sizes_tell_others():
    model = SizeModel.fit({dims: peaks(rfft, dims) for dims in SIZES})
    for dims in (*SIZES, *OTHERS):
        for n in SLICES:
            assert model.at(dims).bytes(n) == rfft(n, dims).n_bytes
    assert from_plain(SizeModel, json.loads(json.dumps(to_plain(model))), "model") == model


def test_sizes_below_all_that_were_recorded_are_not_told():
    model = SizeModel.fit({dims: peaks(rfft, dims) for dims in SIZES})
    assert model.covers((900, 1111))
    assert not model.covers((700, 1111))


def test_formulas_name_rows_and_columns():
    model = SizeModel.fit({dims: peaks(rfft, dims) for dims in SIZES})
    texts = {str(step) for _, _, step in model.terms}
    assert "2 * rows * columns" in texts
    assert "8 * rows + 8 * rows * columns//2" in texts


def test_what_no_formula_gives_is_not_answered():
    assert SizeModel.fit({dims: peaks(strange, dims) for dims in SIZES}) is None


def test_three_sizes_are_not_enough():
    assert SizeModel.fit({dims: peaks(rfft, dims) for dims in SIZES[:3]}) is None


@given(
    st.lists(
        st.tuples(
            st.integers(1, 64), st.sampled_from(sorted(LENGTHS)), st.sampled_from(sorted(LENGTHS))
        ),
        min_size=1,
        max_size=2,
    )
)
def test_a_formula_is_found_again(parts):
    right = SizeFormula(tuple(parts))
    formula = find_formula({dims: right.at(dims) for dims in SIZES})
    assert [formula.at(dims) for dims in SIZES] == [right.at(dims) for dims in SIZES]


def test_two_explanations_that_differ_elsewhere_are_no_answer():
    # Padded to a power of two, or to the next one: only a dim that is one tells.
    formula = find_formula({dims: 1 << (dims[0] - 1).bit_length() for dims in SIZES})
    assert formula.covers((1000, 1000))
    assert not formula.covers((2048, 2048))


def test_values_that_follow_nothing_have_no_formula():
    values = dict(zip(SIZES, (10**9 + 7, 17, 123457, 999_983), strict=True))
    assert find_formula(values) is None


def test_recorded_sizes_tell_the_one_that_is_left_out():
    answered = set()
    for name, recorded in recorded_sizes().items():
        for left_out in recorded:
            sizes = {dims: model for dims, model in recorded.items() if dims != left_out}
            model = SizeModel.fit(sizes)
            if model is not None and model.covers(left_out):
                answered.add(name.split()[0])
                for n in SLICES:
                    assert model.at(left_out).predicted(n) == recorded[left_out].predicted(n), name
    assert answered >= {
        "dark_flat_field_correction", "minus_log", "remove_outlier", "median_filter",
        "total_variation_ROF", "total_variation_PD", "paganin_filter", "paganin_filter_savu_legacy",
        "data_resampler", "rescale_to_int",
    }  # fmt: skip


@given(st.integers(1, 40), st.integers(0, 300), st.integers(1, 50), st.integers(1, 1024))
def test_lines_between_recorded_peaks_are_never_below_them_and_near(chunk, fixed, step, n):
    def bytes_at(k):
        return 1000 * (fixed + step * -(-k // chunk))

    line = MemoryModel.piecewise(upper_line(MemoryModel(bytes_at)))
    assert bytes_at(n) <= line.bytes(n) <= 1.01 * bytes_at(n) + 1
