"""Buffers of sums, as a H200 was seen to allocate them."""

from __future__ import annotations

import pytest

from maxslices.nn.replay.workspaces import reduction_bytes


def of(shape, axes, item=4):
    strides, step = [], 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    flags = tuple(int(axis in axes) for axis in range(len(shape)))
    return reduction_bytes(tuple(shape), tuple(strides), flags, item, 132)


@pytest.mark.parametrize(
    ("shape", "axes", "item", "measured"),
    [
        ((25216, 768), (0,), 4, (138412032, 24)),
        ((25216, 3072), (0,), 4, (138412032, 96)),
        ((25216, 2304), (0,), 4, (139198464, 72)),
        ((6304, 768), (0,), 2, (38928384, 24)),
        ((6304, 2304), (0,), 2, (116785152, 72)),
        ((6304, 3072), (0,), 2, (138412032, 96)),
        ((128, 256, 56, 56), (0, 2, 3), 4, (4096, 1024)),
        ((128, 10), (0,), 4, (0, 0)),
    ],
)
def test_buffers_are_those_of_a_recorded_step(shape, axes, item, measured):
    assert of(shape, axes, item) == measured


def test_a_sum_along_rows_needs_none():
    assert of((100_000, 64), (1,)) == (0, 0)


def test_axes_of_length_one_do_not_matter():
    assert of((1, 25216, 1, 768), (0, 1)) == of((25216, 768), (0,))
