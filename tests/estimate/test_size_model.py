"""Peaks for any detector from those at four sizes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.estimate.peak_model import Observation, PeakModel
from maxslices.estimate.size_model import LENGTHS, SizeFormula, SizeModel, find_formula
from maxslices.measure.allocation_sequence import CallSite, SequenceBuilder

from .recorded_sequences import recorded_sizes

SIZES = ((1801, 2560), (901, 1279), (1200, 2048), (777, 1111))
OTHERS = ((1999, 2333), (2160, 2048), (500, 4000))
SLICES = (1, 2, 3, 5, 8, 40, 1000)


def strange(n, dims):
    """A workspace whose size follows from no product of dims."""
    building = SequenceBuilder(n)
    site = building.site(CallSite("a.py", 1, "f", "1"))
    building.alloc(n * int(dims[1] ** 1.37), site)
    return Observation.of(building.sequence())


def rfft(n, dims):
    rows, columns = dims
    building = SequenceBuilder(n)
    sites = [building.site(CallSite("a.py", line, "f", str(line))) for line in range(4)]
    building.alloc(2 * n * rows * columns, sites[0])
    spectrum = building.alloc(8 * n * rows * (columns // 2 + 1), sites[1])
    building.alloc(8 * n * rows * columns + 4 * columns, sites[2])
    building.free(spectrum)
    building.alloc(1 << (2 * columns - 1).bit_length(), sites[3])
    return Observation.of(building.sequence())


def peaks(method, dims):
    return PeakModel.fit([method(n, dims) for n in (3, 5, 8)])


def test_four_sizes_tell_others():
    model = SizeModel.fit({dims: peaks(rfft, dims) for dims in SIZES}, SLICES)
    for dims in (*SIZES, *OTHERS):
        for n in SLICES:
            assert model.at(dims).bytes(n) == rfft(n, dims).n_bytes
    again = SizeModel.from_plain(json.loads(json.dumps(model.as_plain())))
    assert again.at(OTHERS[0]).bytes(33) == rfft(33, OTHERS[0]).n_bytes


def test_sizes_below_all_that_were_recorded_are_not_told():
    model = SizeModel.fit({dims: peaks(rfft, dims) for dims in SIZES}, SLICES)
    assert model.is_told((900, 1111))
    assert not model.is_told((700, 1111))


def test_formulas_name_rows_and_columns():
    model = SizeModel.fit({dims: peaks(rfft, dims) for dims in SIZES}, SLICES)
    texts = {str(term.step) for terms in model.moments.values() for term in terms}
    assert "2 * rows * columns" in texts
    assert "8 * rows + 8 * rows * columns//2" in texts


def test_what_no_formula_gives_is_not_answered():
    assert SizeModel.fit({dims: peaks(strange, dims) for dims in SIZES}, SLICES) is None


def test_three_sizes_are_not_enough():
    assert SizeModel.fit({dims: peaks(rfft, dims) for dims in SIZES[:3]}, SLICES) is None


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
    found = find_formula({dims: right.at(dims) for dims in SIZES})
    assert [found.at(dims) for dims in SIZES] == [right.at(dims) for dims in SIZES]


def test_two_explanations_that_differ_elsewhere_are_no_answer():
    # Padded to a power of two, or to the next one: only a dim that is one tells.
    found = find_formula({dims: 1 << (dims[0] - 1).bit_length() for dims in SIZES})
    assert found.is_told((1000, 1000))
    assert not found.is_told((2048, 2048))


def test_values_that_follow_nothing_have_no_formula():
    values = dict(zip(SIZES, (10**9 + 7, 17, 123457, 999_983), strict=True))
    assert find_formula(values) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"moments": {}, "terms": [["p", [[[1, "x", "1"]], []], [[], []], "n", 0, [1, 0, "1", 0]]]},
        {"moments": {"a": [0]}, "terms": []},
        {},
    ],
)
def test_damaged_json_is_refused(damage):
    with pytest.raises((KeyError, ValueError, TypeError)):
        SizeModel.from_plain({"sites": {}, "names": {}, "granule_bytes": 512, **damage})


def test_recorded_sizes_tell_the_one_that_is_left_out():
    told = set()
    for name, peaks in recorded_sizes().items():
        for left_out in peaks:
            others = {dims: model for dims, model in peaks.items() if dims != left_out}
            model = SizeModel.fit(others, SLICES)
            if model is not None and model.is_told(left_out):
                told.add(name.split()[0])
                for n in SLICES:
                    assert model.at(left_out).predicted(n) == peaks[left_out].predicted(n), name
    assert told >= {
        "dark_flat_field_correction", "minus_log", "remove_outlier", "median_filter",
        "total_variation_ROF", "total_variation_PD", "paganin_filter", "paganin_filter_savu_legacy",
        "data_resampler", "rescale_to_int",
    }  # fmt: skip
