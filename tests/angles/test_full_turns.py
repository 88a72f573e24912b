"""Full turns with gaps, turns of other lengths, and frames opposite each other.

* "in case there are missing angles" in the halves of a half acquisition:
  reconcile_flip_and_stitch_angles of tomopy-cli, from
  https://github.com/tomopy/tomopy/issues/657
* sets of projections with gaps of 18 degrees, the last at 341.5 degrees:
  https://github.com/llnl/LEAP/issues/97
* incomplete scans between 180 and 360 degrees:
  https://github.com/neutronimaging/imagingsuite/issues/827
* a projection at 0 and one at 360 degrees:
  https://github.com/WebxCT/WebCT/issues/135
* bad projections that are removed:
  https://github.com/yijiang1/fold_slice/pull/97
* the frame in the middle of the stack is not at 180 degrees:
  https://github.com/mantidproject/mantidimaging/issues/485
* any two projections that are 180 degrees apart:
  https://github.com/mantidproject/mantidimaging/issues/1169
* no frame at 180 degrees from the first in a scan from 0.5 to 179.5:
  https://github.com/TomographicImaging/CIL/issues/1619
* last projection discarded for odd numbers of angles:
  https://github.com/tomopy/tomopy/pull/226
"""

import numpy as np
import pytest

from .made_scans import CORRECT, GOLDEN, difference, line_integrals, run, scan, warnings_in

COLUMNS, AXIS = 160, 129.5
WHOLE = np.arange(720) / 2
_random = np.random.default_rng(5)
TURNS = {
    "all frames": WHOLE,
    "0 and 360 degrees": np.arange(721) / 2,
    "20 frames of the first half": np.delete(WHOLE, slice(200, 220)),
    "20 frames of the second half": np.delete(WHOLE, slice(560, 580)),
    "60 frames here and there": np.delete(WHOLE, _random.choice(720, 60, replace=False)),
    "a gap at the end, 341.5 degrees": np.arange(684) / 2,
    "345 degrees": np.arange(691) / 2,
    "366 degrees": np.arange(733) / 2,
    "374 degrees": np.arange(748) / 2,
    "from 90 degrees, modulo 360": (WHOLE + 90) % 360,
    "counted down": WHOLE[::-1],
    "golden": np.arange(720) * 2 * GOLDEN % 360,
    "in sets with gaps": np.delete(WHOLE, np.flatnonzero(WHOLE % 36 >= 30)),
}
"""Angles of full turns in degrees, in the order of the file."""
WITHOUT_PARTNERS = (np.arange(9)[:, None] * 40 + np.arange(0, 20, 0.5)).ravel()
"""Sets of 20 degrees and gaps of 20 degrees: nothing is opposite anything."""


def half_acquisition(degrees, rows=2):
    return scan(degrees, columns=COLUMNS, axis=AXIS, reach=AXIS, rows=rows, scale=1.0)


@pytest.mark.parametrize("turn", TURNS)
def test_the_overlap_is_found(turn):
    report = run(half_acquisition(TURNS[turn]), [*CORRECT, ("find_center_360", {"ind": "mid"})])
    result = report.side_results
    assert result["find_center_360.overlap"] == pytest.approx(60, abs=2)
    assert result["find_center_360.side"] == "right"


@pytest.mark.parametrize("turn", TURNS)
def test_halves_are_stitched_by_angle(turn):
    degrees = TURNS[turn]
    stitch = [("sino_360_to_180", {"overlap": 60, "side": "right"}), ("fbp", {"center": 159.5})]
    result = run(half_acquisition(degrees), [*CORRECT, *stitch]).result
    # A detector twice as wide sees in half a turn what both views see.
    is_seen = np.zeros(720, bool)
    is_seen[np.rint(2 * degrees).astype(int) % 720] = True
    seen = WHOLE[:360] if turn == "golden" else np.flatnonzero(is_seen[:360] & is_seen[360:]) / 2
    wide = scan(seen, columns=320, axis=159.5, reach=AXIS, rows=2, scale=1.0)
    reference = run(wide, [*CORRECT, ("fbp", {"center": 159.5})]).result
    assert difference(result, reference, edge=80) < 0.1


@pytest.mark.parametrize("method", ["find_center_360", "sino_360_to_180"])
def test_frames_without_partners_are_warned_of(method, caplog):
    run(half_acquisition(WITHOUT_PARTNERS), [*CORRECT, method])
    assert any(text.startswith(method) and "degrees" in text for text in warnings_in(caplog))


PAIRS = {
    "a full turn": np.arange(361.0),
    "200 degrees": np.arange(201.0),
    "0.5 to 179.5 degrees": np.arange(180) + 0.5,
    "golden": np.arange(400) * 2 * GOLDEN % 360,
    "the frame in the middle is not at 180": np.r_[np.arange(0, 200, 0.5), np.arange(200, 361, 2)],
}
"""Angles of scans that have two frames half a turn apart."""


@pytest.mark.parametrize("name", PAIRS)
def test_the_axis_is_that_of_frames_opposite_each_other(name):
    source = scan(PAIRS[name], axis=101.0, rows=16)
    report = run(source, [*CORRECT, ("find_center_pc", {})])
    assert report.side_results["find_center_pc.cor"] == pytest.approx(101, abs=0.6)


@pytest.mark.parametrize("turn", ["all frames", "345 degrees", "374 degrees", "golden"])
def test_the_axis_of_a_full_turn_is_found_from_half_of_it(turn):
    source = scan(TURNS[turn], axis=101.0, rows=2)
    report = run(source, [*CORRECT, ("find_center_vo", {"ind": "mid"})])
    assert report.side_results["find_center_vo.cor"] == pytest.approx(101, abs=0.3)


def test_an_odd_number_of_frames_loses_the_last_one_as_before():
    degrees = np.arange(721) / 2
    data = line_integrals(degrees, columns=32, rows=1).astype(np.float32)
    from maxslices_methods.morph import sino_360_to_180

    with_angles = sino_360_to_180(data, 10, "right", angles=np.deg2rad(degrees))
    np.testing.assert_array_equal(with_angles, sino_360_to_180(data, 10, "right"))
