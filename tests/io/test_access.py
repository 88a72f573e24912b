"""Slices of sources and stores that are in memory."""

import numpy as np
import pytest

from maxslices.core.arrays import ArraySpec
from maxslices.devices import select_backend
from maxslices.devices.in_place import slices_in_place
from maxslices.io import MemoryStore, SupportsWindow, open_source

SPEC = ArraySpec((4, 6, 5), np.dtype("uint16"))
DATA = np.arange(4 * 6 * 5, dtype=np.uint16).reshape(SPEC.shape)


@pytest.mark.parametrize("slice_dim", [0, 1])
def test_windows_are_the_memory_itself_and_methods_on_the_cpu_cannot_write_to_it(slice_dim):
    with open_source(DATA) as source, MemoryStore(SPEC) as store:
        store.write(0, 0, DATA)
        for each in (source, store):
            assert isinstance(each, SupportsWindow)
            window = each.window(slice_dim, 1, 3)
            np.testing.assert_array_equal(window, DATA.take((1, 2), axis=slice_dim))
            view = slices_in_place(each, select_backend("cpu"), slice_dim, 1, 3)
            if slice_dim == 1:
                assert view is None  # the rows of several projections have gaps between them
            else:
                assert not view.flags.writeable
                assert np.shares_memory(view, window)


def test_a_file_has_no_windows(tmp_path):
    np.save(tmp_path / "scan.npy", DATA)
    with open_source(tmp_path / "scan.npy") as source:
        assert source.window(1, 0, 2) is None
        assert source.side_window("flats", 0, 0, 2) is None
