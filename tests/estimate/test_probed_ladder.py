"""The arithmetic of the ladder, on functions instead of methods."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxslices.estimate.envelope import envelope
from maxslices.estimate.step_rounding import ARRAY_DEPTH, find_steps, rounded
from maxslices.model.memory_model import MemoryModel

from .ladders import MIB, SLICE, climb, exact_ladder, gpu_ladder, most

costs = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 16)), min_size=1, max_size=4)


@settings(max_examples=3000, deadline=None)
@given(costs, st.integers(1, 1500))
def test_the_largest_of_several_lines_is_found_without_ever_taking_more_than_there_is(pairs, n):
    def needs(k):
        return max((a + b * k) * SLICE for a, b in [*pairs, (0, 1)])

    available = needs(n) + SLICE // 2
    ladder, rungs, _, found = climb(exact_ladder(available), needs)
    model, right = MemoryModel.piecewise(ladder.curve()), most(needs, available)
    assert found <= right
    if len(rungs) > 1:
        assert found >= min(0.98 * right, right - 1)
    last = min(found, max(rungs))
    assert [k for k in range(1, last + 1) if model.bytes(k) < needs(k)] == []
    # Nothing is run only to find out about a hundredth.
    assert [k for k in range(last + 1, found + 1) if 1.01 * model.bytes(k) < needs(k)] == []
    # Four times the steepest slope so far is allowed; twice the slices at most.
    assert max(needs(k) for k in rungs) <= 2 * available


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 50),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([0, 2, 3, 4, 5, 7, 8, 10, 16, 32]),
    st.integers(30, 900),
)
def test_slices_rounded_up_are_safe_and_close(fixed, a, b, period, n):
    def rounded(k):
        return -(-k // period) * period if period else 1 << (k - 1).bit_length()

    def needs(k):
        return (fixed + a * k + b * rounded(k)) * SLICE

    available = needs(n) + SLICE // 2
    ladder, _, _, found = climb(exact_ladder(available), needs)
    model, right = MemoryModel.piecewise(ladder.curve()), most(needs, available)
    assert found <= right
    if right >= max(40, 6 * period):  # before, too few steps were seen to tell them
        assert found >= 0.95 * right
    # What counts as noise at the answer is not looked for below it.
    room = available * 0.006 if n >= 100 else b * period * SLICE
    assert [k for k in range(1, found + 1) if model.bytes(k) + room < needs(k)] == []


@pytest.mark.parametrize("n", [70, 300, 1000])
def test_a_line_from_the_origin_is_believed_at_a_quarter_if_time_matters(n):
    def needs(k):
        return 3 * k * SLICE

    climbed = climb(exact_ladder(needs(n), quick_s=0.0), needs, lambda k: 1e-3 * k)
    assert n / 4 <= max(climbed.rungs) <= n * 0.7
    assert climbed.answer == n
    assert climbed.ladder.is_sure()


def test_a_large_fixed_cost_calls_for_rungs_beyond_a_quarter():
    def needs(k):
        return max(200 + k, 5 * k) * SLICE

    climbed = climb(exact_ladder(needs(200), quick_s=0.0), needs, lambda k: 1e-3 * k)
    assert max(climbed.rungs) >= 190


def test_time_is_kept_to_as_far_as_it_can_be_predicted():
    def needs(k):
        return (50 + 4 * k) * SLICE

    for limit_s in (0.5, 1.0, 3.0):
        ladder = exact_ladder(needs(500), limit_s=limit_s, quick_s=0.1)
        climbed = climb(ladder, needs, lambda k: 0.05 + 0.004 * k)
        assert climbed.elapsed_s <= max(limit_s, min(5 * limit_s, 0.05 * 2160 * 0.004))
        assert climbed.answer <= 500


def test_a_rung_at_a_quarter_is_worth_a_twentieth_of_the_scans_time():
    def needs(k):
        return (100 + k) * SLICE

    def took(total):
        ladder = exact_ladder(needs(1000), total=total, limit_s=1.0, quick_s=0.0)
        return climb(ladder, needs, lambda k: 0.01 * k)

    long = took(8000)
    assert max(long.rungs) >= 250
    assert 1.0 < long.elapsed_s <= 0.05 * 8000 * 0.01
    assert long.answer == 1000
    short = took(1000)
    assert max(short.rungs) <= 64
    assert short.elapsed_s <= 1.0
    assert short.ladder.stopped_by_time


def test_a_second_point_is_never_enough():
    ladder = exact_ladder(1000 * SLICE)
    ladder.add(1, 100 * SLICE, 0.0)
    ladder.add(2, 101 * SLICE, 0.0)
    assert not ladder.is_sure()
    found = MemoryModel.piecewise(ladder.curve()).max_slices(1000 * SLICE)
    assert found <= 20  # the line through both says 900


def test_rungs_part_steps_from_slopes():
    ladder = exact_ladder(10**4 * SLICE, quick_s=0.0)
    climbed = climb(ladder, lambda k: (k + (k > 8)) * SLICE, lambda k: 0.1)
    assert climbed.rungs[:9] == [1, 2, 3, 5, 8, 16, 33, 64, 129]


def test_an_exact_line_up_to_33_slices_is_held_against_a_quarter_of_the_answer_at_once():
    ladder = exact_ladder(6000 * SLICE, quick_s=0.0)
    climbed = climb(ladder, lambda k: 3 * k * SLICE, lambda k: 0.1)
    assert climbed.rungs == [1, 2, 3, 5, 8, 16, 33, 513]
    assert climbed.rungs[-1] * 4 >= 2000


@pytest.mark.parametrize("n", range(880, 900))
def test_steps_too_small_to_matter_are_never_too_many_slices(n):
    def needs(k):
        return (k + -(-k // 5) * 5) * SLICE

    available = needs(n) + SLICE // 2
    assert climb(exact_ladder(available), needs).answer <= most(needs, available)


# LPRec3d_tomobar on an H200, 1801 x 2560 sinograms, MiB with 1 to 40 slices: as it is, and
# without its options that save memory, where it needs less with 31 slices than with 29.
LPREC = (
    868, 885, 1103, 1120, 1338, 1356, 1573, 1591, 1833, 1876, 2118, 2161, 2404, 2446, 2689, 2731,
    2982, 3017, 3288, 3305, 3593, 3611, 3899, 3916, 4204, 4222, 4510, 4527, 4815, 4833, 5121, 5138,
    5426, 5444, 5732, 5750, 6037, 6055, 6343, 6361,
)  # fmt: skip
LPREC_WITHOUT = (
    868, 885, 1103, 1120, 1338, 1356, 1573, 1591, 2233, 2276, 2318, 2361, 2804, 2846, 2889, 2931,
    3374, 3417, 3859, 3902, 4344, 4387, 4230, 4272, 4915, 4957, 5400, 5442, 5885, 5928, 5570, 5613,
    6455, 6498, 6941, 6983, 7426, 7468, 6911, 6954,
)  # fmt: skip


@pytest.mark.parametrize("n", range(10, 40))
@pytest.mark.parametrize("peaks", [LPREC, LPREC_WITHOUT], ids=["as it is", "without options"])
def test_peaks_that_fall_and_bend_late_are_approached_slice_by_slice(peaks, n):
    def needs(k):
        return peaks[k - 1] * MIB if k <= len(peaks) else (k * 180 + 800) * 2**20

    climbed = climb(gpu_ladder(needs(n)), needs, lambda k: 0.025 + 0.003 * k)
    fits = most(needs, needs(n))
    assert min(fits, n) - 1 <= climbed.answer <= fits
    assert climbed.elapsed_s <= 2.5


def test_where_nothing_stops_a_call_none_is_begun_that_is_likely_to_take_too_much():
    def begun(n, tries_more):
        ladder, likely = gpu_ladder(LPREC[n - 1] * MIB), [0]
        ladder.tries_more = tries_more

        def needs(k):
            if ladder.has_points and k > ladder.last[0]:
                likely.append(ladder.likely_bytes(k))
            return LPREC[k - 1] * MIB

        answer = climb(ladder, needs, lambda k: 0.025 + 0.003 * k).answer
        return max(likely) / ladder.available_bytes, answer / most(needs, needs(n))

    freely, strictly = [[begun(n, more) for n in range(12, 38)] for more in (True, False)]
    assert max(freely)[0] > 1.02
    assert max(strictly)[0] <= 1
    assert all(0.9 <= answer <= 1 for _, answer in strictly)


def lprec(k):
    """MiB beyond what was recorded: two sinograms are transformed at a time."""
    return LPREC[k - 1] if k <= 40 else 6361 + (k - 40) // 2 * 305.5 + k % 2 * 287.9


def lprec_without(k):
    """MiB: eight sinograms at a time take more if they are not all there."""
    if k <= 40:
        return LPREC_WITHOUT[k - 1]
    eights, rest = divmod(k - 1, 8)
    if rest >= 6:
        return 6954 + 167.6 * (k - 40) - 43 * (k % 2)
    return 6455.4 + 1540.5 * (eights - 4) + (0, 43, 486, 528, 971, 1013)[rest]


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("n", [*range(41, 72), 96, 100, 128, 150, 200, 256, 300, 400, 600, 830])
@pytest.mark.parametrize("peak", [lprec, lprec_without])
def test_calls_of_a_quarter_of_a_second_leap_to_the_answer(peak, n, rough):
    def needs(k):
        return int(peak(k) * MIB)

    ladder = gpu_ladder(needs(n))
    if rough:  # some MB outside the pool seemed to be the method's
        ladder.is_rough, ladder.noise_bytes, ladder.outside_of_slice = True, 2**22, 2**20 // 2
    climbed = climb(ladder, needs, lambda k: 0.045 + 0.0038 * k, elapsed_s=0.2)
    fits = most(needs, needs(n))
    least = 0.98 * fits
    if peak is lprec_without:  # never too many; time may run out before it is known how it falls
        least = 0.6 * fits if n > 66 else 0.98 * fits - 2
    assert least <= climbed.answer <= fits
    assert climbed.elapsed_s <= 2.5
    assert sum(rung > 8 for rung in climbed.rungs) <= (8 if peak is lprec else 10)
    assert max(map(needs, climbed.rungs)) <= 1.25 * needs(n)


def test_what_lies_between_points_costs_what_the_later_one_does_unless_it_is_straight():
    points = [(1, 10), (2, 20), (3, 30), (8, 130), (9, 140), (20, 250)]
    assert envelope(points, 0) == [
        (1, 10), (2, 20), (3, 30), (4, 130), (8, 130), (9, 140), (20, 250)
    ]  # fmt: skip


def test_one_step_is_not_taken_for_many():
    points = [(n, 2 * n + 50 * (n >= 7)) for n in (1, 2, 3, 5, 8, 10, 14)]
    assert find_steps(points, 0) is None


def test_steps_are_told_from_what_is_measured():
    def needs(k):
        return 7 + 2 * k + 3 * (-(-k // 12) * 12)

    points = [(n, needs(n)) for n in (1, 2, 3, 5, 8, 17, 32, 65)]
    steps = find_steps(points, 0)
    assert {period for period, *_ in steps.candidates} == {11, 12}  # the points allow both
    assert [n for n in range(1, 200) if steps(n) < needs(n) - 1e-6] == []
    (only,) = find_steps([*points, (128, needs(128))], 0).candidates
    assert [round(each) for each in only] == [12, 7, 2, 3, 0]


# FISTA3d_tomobar on an H200, 1801 x 2557, uint16: bytes with 2 to 33 slices, and with 53. What was
# outside the pool lies up to 6 MB off.
PADDED = [
    (2, 510402023), (3, 796949772), (5, 1347287994), (8, 2032248867), (16, 4064589091),
    (33, 8780415115),
]  # fmt: skip
PADDED_53 = 13742933383


def test_clear_steps_are_told_though_readings_lie_off():
    steps = find_steps(PADDED, 4 * MIB)
    assert [period for period, *_ in steps.candidates] == [ARRAY_DEPTH]
    assert steps.candidates[0][-1] > 4 * MIB
    assert PADDED_53 <= steps(53) <= 1.001 * PADDED_53


@pytest.mark.parametrize(("height", "told"), [(1, False), (2, True)])
def test_low_steps_are_not_told_from_readings_that_lie_off(height, told):
    off = {3: 260, 8: -260, 17: 260}
    points = [
        (n, 7000 + 2000 * n + 400 * height * rounded(n, 8) + off.get(n, 0))
        for n in (2, 3, 5, 8, 17, 32, 65)
    ]
    assert (find_steps(points, 80) is not None) == told


def test_what_explains_readings_that_lie_off_less_well_counts_too():
    points = [(n, 7000 + 2000 * n + 300 * rounded(n, 2)) for n in (2, 3, 5, 8, 16, 33, 53)]
    points[2] = (5, points[2][1] + 200)
    steps = find_steps(points, 100)
    best = min(steps.candidates, key=lambda candidate: candidate[-1])
    assert best[0] == 4
    assert {period for period, *_ in steps.candidates} == {2, 4}
