"""The optional protocols of sources and stores."""

import numpy as np
import pytest

from maxslices.core.arrays import ArraySpec
from maxslices.io import (
    HasDetectorStart,
    MemoryStore,
    ScratchStore,
    Source,
    SupportsSideWindow,
    SupportsView,
    SupportsWindow,
    create_sink,
    open_source,
)

SPEC = ArraySpec((4, 6, 5), np.dtype("uint16"))
DATA = np.arange(4 * 6 * 5, dtype=np.uint16).reshape(SPEC.shape)

ALL = {SupportsView, SupportsWindow, SupportsSideWindow, HasDetectorStart}


def offered(thing):
    return {protocol for protocol in ALL if isinstance(thing, protocol)}


def test_what_is_offered_is_declared(tmp_path):
    with (
        open_source(DATA) as source,
        MemoryStore(SPEC) as memory,
        ScratchStore(SPEC, tmp_path) as scratch,
        create_sink(tmp_path / "result", SPEC, 0) as sink,
    ):
        assert offered(source) == ALL
        assert offered(memory) == {SupportsView, SupportsWindow}
        assert offered(scratch) == set()
        assert offered(sink) == set()


def test_a_source_of_a_users_own_offers_what_it_has_methods_for():
    class Detector:
        detector_start = (2, 3)

        def window(self, slice_dim, start, stop):
            return DATA[start:stop]

    assert offered(Detector()) == {SupportsWindow, HasDetectorStart}
    assert not isinstance(Detector(), Source)


@pytest.mark.parametrize("slice_dim", [0, 1])
def test_views_are_read_only_and_windows_are_the_memory_itself(slice_dim):
    with open_source(DATA) as source, MemoryStore(SPEC) as store:
        store.write(0, 0, DATA)
        for each in (source, store):
            window = each.window(slice_dim, 1, 3)
            np.testing.assert_array_equal(window, DATA.take((1, 2), axis=slice_dim))
            view = each.view(slice_dim, 1, 3)
            if slice_dim == 1:
                assert view is None  # the rows of several projections have gaps between them
            else:
                assert not view.flags.writeable
                assert np.shares_memory(view, window)


def test_a_file_has_no_views(tmp_path):
    np.save(tmp_path / "scan.npy", DATA)
    with open_source(tmp_path / "scan.npy") as source:
        assert source.view(0, 0, 2) is None
        assert source.window(1, 0, 2) is None
        assert source.side_window("flats", 0, 0, 2) is None
