"""The ladder on memory that rises and falls with the slices: never too many."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .ladders import MIB, TOTAL, climb, gpu_ladder, most

# LPRec3d_tomobar without its options that save memory on an H200, sinograms of 1801 x 2557,
# MiB with 1 to 72 slices: four chunks, of which the last may be smaller, with an FFT plan of its
# own.
MEASURED = (
    1466.0, 1483.5, 1700.8, 1718.3, 1935.6, 1953.2, 2170.4, 2188.0, 4028.8, 4071.3, 3514.1,
    3556.6, 4598.2, 4640.7, 4083.5, 4126.0, 5167.6, 5210.1, 6251.7, 6294.2, 7335.8, 7378.3,
    6021.7, 6064.2, 7905.2, 7947.7, 8989.3, 9031.8, 10073.3, 10115.8, 7959.9, 8002.4, 10642.7,
    10685.3, 11726.8, 11769.3, 12810.9, 12853.4, 9898.1, 9940.6, 13380.3, 13422.8, 14464.4,
    14506.9, 15548.5, 15591.0, 11836.3, 11878.8, 16117.9, 16160.4, 17202.0, 17244.5, 18286.0,
    18328.6, 13774.5, 13817.0, 18855.5, 18898.0, 19939.5, 19982.0, 21023.6, 21066.1, 15712.7,
    15755.2, 21593.0, 21635.5, 22677.1, 22719.6, 23761.2, 23803.7, 17650.9, 17693.4,
)  # fmt: skip


def teeth(k):
    """MiB of k slices; beyond what was measured each eight slices add as much as before."""
    periods = max(0, -(-(k - len(MEASURED)) // 8))
    k -= 8 * periods
    return MEASURED[k - 1] + periods * (MEASURED[k - 1] - MEASURED[k - 9] if periods else 0)


def saw(k):
    """A made-up one of the same period, whose teeth do not grow."""
    return 800 + 170 * k + 300 * ((k - 1) % 8 // 2) * ((k - 1) % 8 < 6)


def seconds(k):
    return 0.035 + 0.0037 * k


@pytest.mark.parametrize("n", [*range(8, 73), 80, 96, 100, 128, 150, 200, 256, 300, 500, 800])
@pytest.mark.parametrize("peak", [teeth, saw])
def test_calls_of_a_third_of_a_second_never_give_too_many(peak, n):
    def needs(k):
        return int(peak(k) * MIB)

    _, rungs, elapsed_s, answer = climb(gpu_ladder(needs(n)), needs, seconds, elapsed_s=0.08)
    fits = most(needs, needs(n))
    assert answer <= fits
    assert answer >= (0.55 if peak is saw or n > 72 else 0.9) * fits - 1
    assert elapsed_s <= 2.5
    assert max(map(needs, rungs)) <= 1.5 * needs(n)


@pytest.mark.parametrize("n", [61, 64, 72])
def test_teeth_that_were_measured_are_known_to_a_fiftieth(n):
    def needs(k):
        return int(teeth(k) * MIB)

    answer = climb(gpu_ladder(needs(n)), needs, seconds, elapsed_s=0.08).answer
    fits = most(needs, needs(n))
    assert 0.98 * fits <= answer <= fits


@pytest.mark.parametrize("n", [*range(8, 73), 80, 96, 100, 128, 150, 200])
@pytest.mark.parametrize("peak", [teeth, saw])
def test_a_pool_that_is_kept_to_the_budget_makes_no_answer_too_large(peak, n):
    def needs(k):
        return int(peak(k) * MIB)

    available = needs(n)
    climbed = climb(gpu_ladder(available), needs, seconds, elapsed_s=0.08, held_to=available)
    fits = most(needs, available)
    assert (0.55 if peak is saw or n > 72 else 0.86) * fits - 1 <= climbed.answer <= fits
    assert climbed.elapsed_s <= 2.5


# FISTA3d_tomobar on an H200, 1801 x 2560, bytes and seconds: ASTRA's arrays are padded to 16, and
# known to some MB.
FISTA = {
    1: (249004505, 0.5), 2: (544432433, 1.1), 3: (850573852, 1.3), 5: (1444874696, 1.6),
    8: (2185774905, 2.6), 16: (4371744080, 4.2), 32: (8733391895, 8.3),
}  # fmt: skip


@pytest.mark.parametrize(("lacking", "fits"), [(0, 32), (5_000_000, 31)])
def test_one_more_slice_of_few_is_run_where_it_is_not_known_to_fit(lacking, fits):
    ladder = gpu_ladder(FISTA[32][0] - lacking, limit_s=8.0)
    ladder.is_slow = True
    ladder.is_rough, ladder.noise_bytes, ladder.outside_of_slice = True, 4 * MIB, 26.6e6
    climbed = climb(ladder, lambda k: FISTA[k][0], lambda k: FISTA[k][1], elapsed_s=0.6)
    assert climbed.rungs == [*FISTA]
    assert climbed.answer == fits


# The same, 1801 x 2557, uint16: steps, though what is outside the pool lies up to 6 MB off.
FISTA_UINT16 = {
    1: (227689984, 0.6), 2: (510402023, 1.2), 3: (796949772, 1.3), 5: (1347287994, 1.6),
    8: (2032248867, 2.7), 16: (4064589091, 4.4), 33: (8780415115, 8.8), 53: (13742933383, 12.9),
}  # fmt: skip


def test_there_is_no_need_to_run_what_padded_arrays_say():
    ladder = gpu_ladder(FISTA_UINT16[53][0], limit_s=8.0)
    ladder.is_slow = True
    ladder.is_rough, ladder.noise_bytes, ladder.outside_of_slice = True, 4 * MIB, 42e6
    climbed = climb(
        ladder, lambda k: FISTA_UINT16[k][0], lambda k: FISTA_UINT16[k][1], elapsed_s=0.6
    )
    assert max(climbed.rungs) == 33
    assert climbed.ladder.is_sure()
    assert 0.98 * 53 <= climbed.answer <= 53


@pytest.mark.parametrize(
    ("fixed", "a", "period", "height", "n"),
    [(0, 20, 9, 0.4, 18), (0, 40, 8, 0.05, 20), (0, 160, 8, 0.1, 18), (200, 40, 11, 0.1, 26)],
)
def test_after_few_rungs_of_long_calls_the_answer_is_run_if_that_takes_no_longer(
    fixed, a, period, height, n
):
    def needs(k):  # steps that five rungs do not show
        return int((fixed + a * k + 2 * height * a * -(-k // period) * period) * MIB)

    def answered(is_slow):
        ladder = gpu_ladder(needs(n) + 10 * MIB, limit_s=8.0)
        ladder.is_slow = is_slow
        return climb(ladder, needs, lambda k: 0.3 + 0.25 * k)

    before, climbed = answered(False), answered(True)
    fits = most(needs, needs(n) + 10 * MIB)
    assert fits - 1 <= climbed.answer <= fits < before.answer
    assert climbed.elapsed_s <= 0.05 * TOTAL * 0.25  # what the scan will take


def rising_teeth(fixed, a, period, height):
    return lambda k: fixed + a * k + height * a * ((k - 1) % period)


def growing_teeth(fixed, a, period, height):
    return lambda k: fixed + a * k * (1 + height / 4 * ((k - 1) % period) / period)


def falling_teeth(fixed, a, period, height):
    return lambda k: fixed + a * k * (1 + height / 4 * (period - 1 - (k - 1) % period) / period)


def two_at_a_time(fixed, a, period, height):
    period += period % 2
    return lambda k: fixed + a * k + height * a * ((k - 1) % period // 2) * (k % period > 2)


def what_is_left(fixed, a, period, height):
    return lambda k: fixed + a * k + height * a * (min(k, period) + k % period * (k > period))


def steps(fixed, a, period, height):
    return lambda k: fixed + a * k + height * a * (-(-k // period) * period)


def two_slopes(fixed, a, period, height):
    return lambda k: max(fixed + a * k, height * a * k, 10 * period * a)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(
        [rising_teeth, growing_teeth, falling_teeth, two_at_a_time, what_is_left, steps, two_slopes]
    ),
    st.integers(0, 3000),
    st.sampled_from([20, 30, 70, 200]),
    st.integers(2, 16),
    st.integers(1, 4),
    st.integers(6, 400),
)
def test_quick_calls_never_give_too_many_whatever_the_teeth(kind, fixed, a, period, height, n):
    mib = kind(fixed, a, period, height)

    def needs(k):
        return mib(k) * MIB if isinstance(mib(k), int) else int(mib(k) * MIB)

    available = needs(n)
    answer = climb(gpu_ladder(available, limit_s=1e9, quick_s=1e9), needs).answer
    assert answer <= most(needs, available)
