"""Axes far from the middle of the detector.

* the axis lies outside of the default range:
  https://github.com/algotom/algotom/issues/7
* a minimum at the end of the range:
  https://github.com/DiamondLightSource/Savu/issues/443
* a range of 40 columns for detectors of any width:
  https://github.com/TomographicImaging/CIL/pull/468
* sinograms of 45 angles and 91 columns:
  https://github.com/tomopy/tomopy/issues/224
* a wide detector of which columns are averaged, its axis 500 columns off:
  https://github.com/tomopy/tomopy/pull/280
"""

import numpy as np
import pytest

from .made_scans import CORRECT, run, scan, warnings_in

SIZES = [
    (45, 91, 4.0),
    (45, 91, -18.0),
    (181, 130, 25.0),
    (181, 300, -70.0),
    (181, 640, 150.0),
    (181, 2100, 500.0),
    (181, 2100, -400.0),
]
"""Angles, columns, and columns between the axis and the middle."""


@pytest.mark.parametrize("n_angles, columns, off", SIZES)
def test_the_axis_is_found_by_default(n_angles, columns, off):
    axis = (columns - 1) / 2 + off
    reach = min(axis, columns - axis) if columns < 100 else columns / 2
    source = scan(np.linspace(0, 180, n_angles), columns=columns, axis=axis, reach=reach, rows=1)
    report = run(source, [*CORRECT, ("find_center_vo", {"ind": "mid"})])
    assert report.side_results["find_center_vo.cor"] == pytest.approx(axis, abs=1)


@pytest.mark.parametrize("axis, why", [(158.0, "at an end"), (175.0, "unlike")])
def test_an_overlap_that_cannot_be_is_warned_of(axis, why, caplog):
    source = scan(np.arange(360.0), columns=160, axis=axis, reach=axis, rows=2, scale=1.0)
    run(source, [*CORRECT, ("find_center_360", {"side": "right"})])
    assert any("find_center_360" in text and why in text for text in warnings_in(caplog))
