"""NaN and infinite values are counted where they come from, and left as they are."""

from __future__ import annotations

import numpy as np
import pytest

import maxslices
from maxslices import Pipeline, Registry
from maxslices.devices.non_finite import NonFiniteCount

methods = Registry()
methods.register(lambda data: np.log(data), name="log", module="own", pattern="all")
methods.register(lambda data: data + 1, name="plus", module="own", pattern="all", halo=1)
methods.register(
    lambda data: data * np.where(np.isinf(data), 0, 1).astype("f4"),
    name="spoil",
    module="own",
    pattern="sinogram",
)


@pytest.mark.filterwarnings("ignore:.*encountered in (log|multiply|divide)")
def test_they_are_counted_once_and_for_the_method_that_makes_them():
    scan = np.ones((12, 6, 5), np.float32)
    scan[3, 2, 1], scan[4:6, 0, 0], scan[7, 5, 4] = -1, 0, 5
    pipeline = Pipeline.from_steps(["plus", "log", "plus", "spoil"], methods)
    scan -= 1
    report = maxslices.run(scan, pipeline, device="cpu", block=4)
    told = [warning for section in report.sections for warning in section.warnings]
    left = "values: they are left as they are"
    assert told == [
        f"the result of log has 1 NaN and 2 infinite {left}",
        f"the result of spoil has 3 NaN and 0 infinite {left}",
    ]
    assert np.count_nonzero(np.isnan(report.result)) == 3
    assert "warning: the result of log has 1 NaN" in str(report)


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 3e38), ("float64", 1e300), ("uint16", 60000)]
)
def test_what_is_finite_is_not_counted_however_large(dtype, value):
    count = NonFiniteCount(1)
    count.look(0, np.full((3, 4, 5), value, dtype))
    np.testing.assert_array_equal(count.totals(), [[0, 0]])


def test_parts_of_frames_are_counted():
    data = np.zeros((4, 6, 5), np.float32)
    data[:, 0], data[1, 3, 2], data[2, 4, 0] = np.nan, np.inf, -np.inf
    count = NonFiniteCount(2)
    count.look(1, data[:, 1:5])
    np.testing.assert_array_equal(count.totals(), [[0, 0], [0, 2]])
