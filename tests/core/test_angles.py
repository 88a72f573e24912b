"""The table of a scan's angles: order, gaps, half turns, and opposite projections."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.core.angles import angle_table

GOLDEN = 222.49223594996216


def table(degrees):
    return angle_table(np.deg2rad(np.asarray(degrees, float)))


@pytest.mark.parametrize(
    "degrees",
    [
        np.linspace(0, 180, 181),
        np.linspace(180, 0, 181),
        (np.arange(360) + 90) % 360,
        np.arange(-90, 90) + np.random.default_rng(0).normal(0, 0.1, 180),
        np.arange(0, 1440, 0.7),
        np.tile(np.arange(0, 360, 12), 3),
        [7.0],
        [0.0, 0.0],
    ],
)
def test_a_stage_that_turns_one_way_stores_projections_in_order(degrees):
    angles = table(degrees)
    assert angles.in_order
    np.testing.assert_array_equal(angles.order, np.arange(len(degrees)))


@pytest.mark.parametrize(
    "degrees",
    [
        np.arange(100) * GOLDEN % 360,
        np.arange(100) * GOLDEN,
        np.arange(100) * GOLDEN / 2 % 180,
        np.r_[0:180:2, 179:0:-2],
        np.r_[0:180:4, 181:360:4, 362:540:4, 543:720:4],
    ],
)
def test_other_orders_are_recognised(degrees):
    angles = table(degrees)
    assert not angles.in_order
    assert (np.diff(angles.positions) >= 0).all()
    np.testing.assert_allclose(
        np.diff((degrees[angles.order] - degrees[angles.order[0]]) % 360), np.diff(angles.positions)
    )


@given(st.lists(st.floats(-400, 400), min_size=2, max_size=60), st.randoms())
def test_the_order_of_the_file_does_not_change_the_order_of_directions(degrees, random):
    shuffled = list(degrees)
    random.shuffle(shuffled)
    first, second = table(degrees), table(shuffled)
    if not (first.in_order or second.in_order):
        a, b = (np.asarray(d)[t.order] for d, t in ((degrees, first), (shuffled, second)))
        np.testing.assert_allclose((a - b + 180) % 360, 180, atol=1e-9)


def test_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match=r"181 angles from 0 to 180 degrees.* 1 of these"):
        table(np.arange(181.0)).opposite(90)


@pytest.mark.parametrize(
    "degrees, pair",
    [
        (np.arange(181.0), (0, 180)),
        (np.arange(180.0), (0, 179)),
        (np.arange(361.0), (0, 180)),
        (np.arange(0, 170.0), (0, 169)),
        ([10.0, 300.0, 77.0, 190.5], (0, 3)),
    ],
)
def test_the_pair_closest_to_half_a_turn_is_found(degrees, pair):
    assert table(degrees).opposite_pair()[:2] == pair
