"""Peaks extrapolated from three calls of at most eight slices, compared with recorded calls."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.estimate.formula import COUNTS, Formula, fits
from maxslices.estimate.peak_model import Observation, PeakModel
from maxslices.measure.allocation_sequence import AllocationSequence, CallSite, SequenceBuilder
from maxslices.system.plain_records import from_plain, to_plain

from .recorded_sequences import recorded, recorded_packages

FEW = (3, 5, 8)


def changes_its_ways(case):
    """True if more slices than 16, or than eight, go in several chunks."""
    return case.name == "chunks_of_16" or "min_mem_usage_filter" in case.parameters


@pytest.mark.parametrize("case", recorded(), ids=str)
def test_three_small_calls_tell_all_others(case):
    seen = {n: case.observation(n) for n in case.calls}
    model = PeakModel.fit([seen[n] for n in FEW])
    for n, observation in seen.items():
        if n > 1 and not (changes_its_ways(case) and n > 8):
            above = model.bytes(n) - observation.n_bytes
            room = 10_000 * n if case.name == "argsort_slices" else 0  # a sort's padded scratch
            assert 0 <= above <= room, (n, model.bytes(n), observation.n_bytes)


@pytest.mark.parametrize("case", recorded_packages(), ids=str)
def test_three_small_calls_tell_those_of_packages_that_nobody_tuned_to(case):
    model = PeakModel.fit([case.observation(n) for n in FEW])
    for n in case.calls:
        assert model.bytes(n) == case.observation(n).n_bytes


@pytest.mark.parametrize("case", [c for c in recorded() if changes_its_ways(c)], ids=str)
def test_a_call_that_contradicts_teaches(case):
    most = max(case.calls)
    taught = PeakModel.fit([case.observation(n) for n in (*FEW, most)])
    assert taught.bytes(most) == case.observation(most).n_bytes
    assert taught.bytes(2 * most) <= 2.2 * taught.bytes(most)
    for n in FEW:
        assert taught.bytes(n) == case.observation(n).n_bytes


def a_call(n, *, chunk, fixed=7000, slice_bytes=1009):
    """Work through chunks, with a list of one result a slice."""
    building = SequenceBuilder(n)
    data, work, mean, total = (
        building.site(CallSite("a.py", line, "f", str(line))) for line in (1, 2, 3, 4)
    )
    building.alloc(n * slice_bytes, data)
    for start in range(0, n, chunk):
        size = min(chunk, n - start)
        scratch = building.alloc(5 * size * slice_bytes + fixed, work)
        for _ in range(size):
            building.alloc(slice_bytes // 3, mean)
        building.free(scratch)
    building.alloc(n * slice_bytes, total)
    return building.sequence()


# Not slices of less than the allocator's granule: where they are worked on in pairs, the sum of
# what is rounded up may be a granule off.
@given(st.integers(1, 40), st.integers(0, 10**6), st.integers(512, 10**5), st.integers(9, 300))
def test_a_loop_over_chunks_is_told_from_calls_with_fewer_and_one_with_more(
    chunk, fixed, slice_bytes, most
):
    def call(n):
        return a_call(n, chunk=chunk, fixed=fixed, slice_bytes=slice_bytes)

    model = PeakModel.fit([Observation.of(call(n)) for n in (*FEW, most)])
    assert model.bytes(most) == call(most).peak_bytes()
    for n in (2 * most, 5 * most):
        if chunk == 1 or (chunk == 2 and most > 12) or chunk > 5 * most:
            assert model.bytes(n) == call(n).peak_bytes()
        elif chunk == 2:  # now and then a formula of thirds meets the calls as well
            assert model.bytes(n) >= call(n).peak_bytes()


def test_a_call_that_ran_out_of_memory_tells_what_it_asked_for_and_what_stays_beyond():
    def call(n, cut=False):
        building = SequenceBuilder(n)
        data, work, image, last = (
            building.site(CallSite("a.py", line, "f", str(line))) for line in (1, 2, 3, 4)
        )
        building.alloc(n * 10_000, data)
        building.alloc(-(-n // 8) * 90_000, work)  # one chunk of eight, in the small calls
        building.alloc(n * 30_000, image)
        if not cut:
            building.alloc(n * 40_000, last)
        return Observation.of(building.sequence())

    few = [call(n) for n in FEW]
    assert PeakModel.fit(few).bytes(80) < call(80).n_bytes
    assert PeakModel.fit(few, cut=[call(40, cut=True)]).bytes(80) == call(80).n_bytes


def test_a_call_that_ran_out_of_memory_early_lowers_nothing():
    def cut(n):
        whole = a_call(n, chunk=100)
        events = whole.events[:2]
        return Observation.of(AllocationSequence(n, whole.sites, events))

    few = [Observation.of(a_call(n, chunk=100)) for n in FEW]
    model, again = PeakModel.fit(few), PeakModel.fit(few, cut=[cut(40)])
    assert [again.bytes(n) for n in range(1, 100)] == [model.bytes(n) for n in range(1, 100)]


def test_terms_say_where_and_how_much():
    model = PeakModel.fit([Observation.of(a_call(n, chunk=100)) for n in FEW])
    assert model.sites[model.highest(1)].line == 3
    terms = {model.sites[term.path].line: term for term in model.moments[model.highest(1)]}
    assert str(terms[1].size) == "1,009 * n"
    assert str(terms[2].size) == "7,000 + 5,045 * n"
    assert (str(terms[3].size), str(terms[3].number)) == ("336", "1 * n")
    assert terms[2].is_proven


@pytest.mark.parametrize("case", recorded()[::7], ids=str)
def test_a_pruned_model_in_json_says_the_same(case):
    model = PeakModel.fit([case.observation(n) for n in (*FEW, max(case.calls))])
    again = from_plain(PeakModel, json.loads(json.dumps(to_plain(model.pruned()))), "peaks")
    assert [again.bytes(n) for n in range(1, 200)] == [model.bytes(n) for n in range(1, 200)]
    assert len(again.moments) <= 8
    assert len(json.dumps(to_plain(again))) < 10_000


@given(
    st.sampled_from(
        sorted(
            name
            for name in COUNTS
            if "last" not in name and "ragged" not in name and "depth" not in name
        )
    ),
    st.integers(2, 8),
    st.integers(0, 10**9),
    st.integers(1, 10**8),
)
def test_a_growth_is_among_those_that_fit_it(count, k, start, step):
    right = Formula(start, step, count, k)
    points = {n: right.at(n) for n in (2, 3, 5, 8, 13)}
    assert all(
        formula.at(n) == points[n] or formula.counted == "n"
        for formula in fits(points)
        for n in points
    )
    assert any(formula.at(40) == right.at(40) for formula in fits(points))


def test_what_no_formula_tells_costs_as_much_as_its_end():
    def a_block(n):
        building = SequenceBuilder(n)
        building.alloc(
            1000 * n if n >= 10 else 30 * n * n, building.site(CallSite("a", 1, "f", "1"))
        )
        return Observation.of(building.sequence(), 1)

    model = PeakModel.fit([a_block(n) for n in (2, 3, 10, 11, 12)], 1)
    assert [model.bytes(n) for n in (2, 3, 4, 9, 10, 13)] == [120, 270, *[10_000] * 3, 13_000]
