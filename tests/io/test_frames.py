from __future__ import annotations

import numpy as np
import pytest

from maxslices.io.frames.frames import ArrayFrames, Selection

DATA = np.arange(10 * 6 * 8).reshape(10, 6, 8)


def whole(selection: Selection) -> np.ndarray:
    out = np.empty(selection.spec.shape, selection.spec.dtype)
    n_frames, n_rows, _ = selection.spec.shape
    selection.read((0, n_frames), (0, n_rows), out)
    return out


@pytest.fixture
def odd() -> Selection:
    return Selection.of(ArrayFrames("a", DATA), [1, 3, 4, 5, 8])


def test_a_part_of_a_part(odd):
    np.testing.assert_array_equal(whole(odd.take(slice(1, 5)).take(slice(1, 4))), DATA[[4, 5, 8]])


def test_a_window_in_a_window(odd):
    window = odd.crop((1, 6), (2, 8)).crop((1, 3), (1, 4))
    np.testing.assert_array_equal(whole(window), DATA[[1, 3, 4, 5, 8], 2:4, 3:6])


def test_frames_and_rows_within_a_window(odd):
    out = np.empty((2, 2, 8), int)
    odd.crop((1, 6), (0, 8)).read((2, 4), (1, 3), out)
    np.testing.assert_array_equal(out, DATA[[4, 5], 2:4])
