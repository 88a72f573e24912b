from __future__ import annotations

import pickle

import numpy as np
import pytest

from maxslices.core.arrays import ArraySpec, as_dtype, block_shape, parse_shape
from maxslices.errors import UsageError

SPEC = ArraySpec((5, 7, 11), "uint16")


def test_a_spec_knows_its_bytes_and_prints_as_people_write_it():
    assert SPEC.nbytes == 5 * 7 * 11 * 2
    assert str(SPEC) == "5x7x11 uint16"


def test_specs_can_be_pickled_and_hashed():
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC
    assert {SPEC: 1}[ArraySpec([5, 7, 11], np.dtype("u2"))] == 1


@pytest.mark.parametrize(
    ("slice_dim", "other_dims", "cut"),
    [(0, (7, 11), (3, 7, 11)), (1, (5, 11), (5, 3, 11)), (2, (5, 7), (5, 7, 3))],
)
def test_other_dims_and_slices_along_each_axis(slice_dim, other_dims, cut):
    assert SPEC.other_dims(slice_dim) == other_dims
    assert SPEC.with_slices(slice_dim, 3).shape == cut
    assert block_shape(slice_dim, 3, other_dims) == cut


@pytest.mark.parametrize("slice_dim", [-1, 3, None, "0"])
def test_an_invalid_slice_dim_is_refused(slice_dim):
    with pytest.raises(UsageError, match="slice_dim must be 0, 1 or 2"):
        SPEC.other_dims(slice_dim)
    with pytest.raises(UsageError, match="the axis of slices must be one of 0, 1, 2, not"):
        block_shape(slice_dim, 3, (7, 11))


@pytest.mark.parametrize(
    "shape", [(), (5, 7), (5, 7, 11, 13), (0, 7, 11), (-5, 7, 11), (5.5, 7, 11), "5x7x11", 5, None]
)
def test_an_invalid_shape_is_refused(shape):
    with pytest.raises(UsageError, match="three dims"):
        ArraySpec(shape, "float32")


@pytest.mark.parametrize(
    "dtype", ["float33", None, "U5", object, [("a", "f4")], "datetime64[s]", 1.5]
)
def test_a_dtype_that_is_not_numeric_is_refused(dtype):
    with pytest.raises(UsageError, match="dtype"):
        ArraySpec((5, 7, 11), dtype)


@pytest.mark.parametrize("dtype", [np.float32(), np.float32, "float32", "f4", np.dtype("float32")])
def test_a_dtype_may_be_written_in_many_ways(dtype):
    assert as_dtype(dtype) == np.dtype("float32")


@pytest.mark.parametrize("text", ["1801x2160x2560", " 1801 x 2160 X 2560 "])
def test_shapes_are_read(text):
    assert parse_shape(text) == (1801, 2160, 2560)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5x7",
        "5x7x11x13",
        "0x7x11",
        "-5x7x11",
        "5.0x7x11",
        "²x7x11",
        "axbxc",
        "9" * 5000 + "x1x1",
    ],
)
def test_text_that_is_not_a_shape_is_refused(text):
    with pytest.raises(UsageError, match="is not a shape"):
        parse_shape(text)
