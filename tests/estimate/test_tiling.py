"""Tiles that cover a slice, each pixel once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from maxslices.estimate.tiling import Tiling

SIDES = st.integers(1, 90)


@given(SIDES, SIDES, SIDES, SIDES, st.integers(0, 9), st.integers(0, 9))
def test_each_pixel_is_in_one_tile_and_has_its_halo(rows, columns, n, m, above, beside):
    tiling = Tiling.into((rows, columns), (min(n, rows), min(m, columns)), (above, beside))
    count, largest, total = np.zeros((rows, columns), int), [0, 0], 0
    for window in tiling.windows():
        count[window.place] += 1
        for axis, (n_all, halo) in enumerate([(rows, above), (columns, beside)]):
            whole, kept, place = window.given[axis], window.kept[axis], window.place[axis]
            assert whole.start == max(0, place.start - halo)
            assert whole.stop == min(n_all, place.stop + halo)
            assert whole.start + kept.start == place.start
            assert kept.stop - kept.start == place.stop - place.start
            largest[axis] = max(largest[axis], whole.stop - whole.start)
        total += np.empty((rows, columns))[window.given].size
    assert (count == 1).all()
    assert tiling.given_dims == tuple(largest)
    assert tiling.n_tiles == len(list(tiling.windows()))
    assert abs(tiling.factor - total / (rows * columns)) < 1e-9
