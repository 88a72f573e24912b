"""Scans whose frames are not stored in the order of their angles.

* golden-angle scan, frames in the order of acquisition: 0, 222, 85, 307 degrees ...:
  https://github.com/mantidproject/mantidimaging/issues/1225
* sinogram in the order of projections where a file of angles is given:
  https://github.com/mantidproject/mantidimaging/issues/2909
* golden-angle scan of 280, 330 and 377 projections sorted wrongly:
  https://github.com/neutronimaging/imagingsuite/issues/303
* a scan from 360 degrees down ("Gantry direction=CW, Scanning Start Angle=360"):
  https://github.com/ufo-kit/tofu/issues/89
* interlaced views over several half turns (TIMBIR), angles counted on:
  Mohan et al., IEEE Trans. Comput. Imaging 1, 96 (2015)
"""

import numpy as np
import pytest

from maxslices import ArrayScan

from .made_scans import CORRECT, GOLDEN, difference, line_integrals, run, scan, sides, warnings_in

pytestmark = pytest.mark.filterwarnings("ignore:.*the angles in radians cover")

ORDERS = {
    "golden over a half turn": np.arange(180) * GOLDEN % 180,
    "golden over a full turn": np.arange(360) * 2 * GOLDEN % 360,
    "golden, counted on": np.arange(360) * 2 * GOLDEN,
    "interlaced": np.arange(180).reshape(-1, 4).T.ravel().astype(float),
    "there and back": np.r_[np.arange(0, 180, 2), np.arange(179, 0, -2)].astype(float),
    "in no order": np.random.default_rng(3).permutation(181).astype(float),
    "TIMBIR, counted on": (np.arange(180) * 4 + np.arange(180) // 45) * 1.0,
}
"""Angles in degrees, in the order of the file."""
STRIPES = {
    "remove_stripe_fw": {},
    "remove_stripe_based_sorting": {},
    "remove_all_stripe": {},
}


def in_one_turn(degrees):
    """Indices of frames by their angles within one turn."""
    return np.argsort(degrees % 360, kind="stable")


@pytest.mark.parametrize("order", ORDERS)
def test_the_axis_is_found(order):
    source = scan(ORDERS[order], axis=101.0)
    report = run(source, [*CORRECT, ("find_center_vo", {"ind": "mid"})])
    assert report.side_results["find_center_vo.cor"] == pytest.approx(101, abs=0.5)


@pytest.mark.parametrize("stripes", STRIPES)
@pytest.mark.parametrize("order", [name for name in ORDERS if "TIMBIR" not in name])
def test_stripes_are_removed_as_from_sorted_frames(order, stripes):
    degrees = ORDERS[order]
    by_angle = in_one_turn(degrees)
    steps = [*CORRECT, (stripes, STRIPES[stripes])]
    stored = scan(degrees)
    ordered = ArrayScan(stored.data[by_angle], **sides(stored), angles=stored.angles[by_angle])
    result = run(stored, steps).result
    np.testing.assert_array_equal(result[by_angle], run(ordered, steps).result)


@pytest.mark.parametrize("order", ORDERS)
def test_means_are_of_neighbours(order):
    degrees = ORDERS[order]
    source = scan(degrees)
    tail = [("fbp", {"center": 95.5})]
    averaged = [("average_projection_frames", {"projection_averaging_factor": 2}), *tail]
    one = run(source, [*CORRECT, *tail]).result
    two = run(source, [*CORRECT, *averaged]).result
    assert difference(two, one) < 0.2


@pytest.mark.parametrize(
    "step",
    [
        *STRIPES,
        ("remove_stripe_based_sorting", {"dim": 2}),
        "average_projection_frames",
        ("sino_360_to_180", {"overlap": 6}),
    ],
)
def test_results_are_the_same_for_any_block(step):
    source = scan(ORDERS["golden over a full turn"], columns=64, rows=7)
    whole, one, three = (run(source, [*CORRECT, step], block=n).result for n in (7, 1, 3))
    np.testing.assert_array_equal(one, whole)
    np.testing.assert_array_equal(three, whole)


@pytest.mark.parametrize("n_angles", [233, 280, 330, 377])
def test_a_pipeline_can_sort_frames(n_angles):
    degrees = np.arange(n_angles) * 2 * GOLDEN % 360
    source = scan(degrees, rows=2, columns=64)
    result = run(source, [*CORRECT, "sort_by_angle"]).result
    by_angle = in_one_turn(degrees)
    np.testing.assert_array_equal(result, run(source, CORRECT).result[by_angle])
    reference = line_integrals(np.sort(degrees), rows=2, columns=64)
    assert np.abs(result - reference).max() < 0.3


@pytest.mark.parametrize("last", [180.0, 360.0])
def test_a_scan_that_counts_down(last):
    degrees = np.linspace(last, 0, int(last) + 1)
    report = run(scan(degrees, axis=101.0), [*CORRECT, ("find_center_vo", {"ind": "mid"})])
    assert report.side_results["find_center_vo.cor"] == pytest.approx(101, abs=0.5)


def test_methods_of_other_packages_are_warned_of(caplog, foreign_stripe_method):
    run(scan(ORDERS["interlaced"], rows=2), [*CORRECT, foreign_stripe_method])
    warnings = " ".join(warnings_in(caplog))
    assert "sort_by_angle" in warnings
    assert foreign_stripe_method in warnings


def test_methods_of_other_packages_after_sorting_are_not(caplog, foreign_stripe_method):
    run(scan(ORDERS["interlaced"], rows=2), [*CORRECT, "sort_by_angle", foreign_stripe_method])
    assert "sort_by_angle" not in " ".join(warnings_in(caplog))
