"""A function run on the blocks of arrays of any library, along any axis."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import scipy.ndimage
import zarr

from maxslices import Registry, fit_blocks, from_ledger, map_blocks, method
from maxslices.errors import DoesNotFitError, MaxslicesError, UsageError

SHAPE = (13, 41, 70, 25)
ARRAY = np.random.default_rng(2).normal(size=SHAPE).astype("float32")
SMALL = 4_000_000
"""Bytes for a few elements along each axis of the array."""


BUDGET = "11MB"
"""Bytes for a run on some of its blocks: the whole array and result do not fit beside them."""


def gaussian(data, sigma=1.5, axis=1):
    """Smooth along one axis."""
    return scipy.ndimage.gaussian_filter1d(data, sigma, axis=axis)


def squared_sum(data):
    """Sum over the last axis, of other dtype."""
    return (data.astype("float64") ** 2).sum(axis=-1)


@from_ledger
def needs(m, shape, dtype, **_):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)
    m.alloc_bytes(3)


@method("all", calc_max_slices=needs, halo=1)
def neighbours(data, factor=3):
    """Difference of neighbours along the second axis."""
    return factor * np.gradient(data, axis=1).astype(data.dtype)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -4])
def test_a_block_has_the_arrays_shape_but_along_the_axis(axis):
    n_others = ARRAY.size // SHAPE[axis]
    for n_fit in (1, 3):
        needed = 2 * n_others * n_fit * 4 + 3
        block = fit_blocks(neighbours, ARRAY, needed, axis=axis, halo=0, device="cpu")
        assert block[axis] == n_fit
        assert np.delete(block, axis).tolist() == np.delete(SHAPE, axis).tolist()


def test_a_halo_counts_and_is_what_the_method_declares_where_none_is_given():
    needed = 2 * (ARRAY.size // 41) * 7 * 4 + 3
    assert fit_blocks(neighbours, ARRAY, needed, axis=1, device="cpu")[1] == 5
    assert fit_blocks(neighbours, ARRAY, needed, axis=1, halo=(0, 2), device="cpu")[1] == 5
    assert fit_blocks(neighbours, ARRAY, needed, axis=1, halo=0, device="cpu")[1] == 7


def test_an_undeclared_function_is_measured_for_its_own_dims():
    first = fit_blocks(squared_sum, ARRAY, SMALL, device="cpu")
    other = fit_blocks(squared_sum, ARRAY.reshape(13, 41, 25, 70), SMALL, device="cpu")
    assert 0 < first[0] <= 13
    assert other[0] != 0


def test_not_one_element_is_an_error_with_both_numbers():
    with pytest.raises(DoesNotFitError, match=r"1x41x70x25 of float32 takes 574 kB, but 1\.00 kB"):
        fit_blocks(neighbours, ARRAY, 1000, halo=0, device="cpu")


def sources(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=ARRAY, chunks=(4, 11, 70, 25))
    yield "numpy", ARRAY
    yield "gaps", np.asfortranarray(ARRAY)
    yield "hdf5", h5py.File(tmp_path / "a.h5")["a"]
    yield "zarr", zarr.array(ARRAY, chunks=(5, 10, 70, 25))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_arrays_of_any_library_give_what_one_call_gives(tmp_path, axis):
    filtered = (axis + 1) % 4
    expected = gaussian(ARRAY, axis=filtered)
    for name, array in sources(tmp_path):

        def smooth(data):
            return gaussian(data, axis=filtered)

        result = map_blocks(smooth, array, BUDGET, axis=axis, device="cpu")
        np.testing.assert_array_equal(result, expected, err_msg=name)


def test_a_halo_makes_blocks_join_without_a_seam():
    sizes = []

    @method("all", calc_max_slices=needs, registry=Registry())
    def smooth(data):
        sizes.append(data.shape[1])
        return scipy.ndimage.uniform_filter1d(data, 5, axis=1)

    result = map_blocks(smooth, ARRAY, "10MB", axis=1, halo=2, device="cpu")
    assert max(sizes) < 41  # it is not one block
    expected = scipy.ndimage.uniform_filter1d(ARRAY, 5, axis=1)
    np.testing.assert_array_equal(result, expected)


def test_dims_and_dtype_of_the_result_are_the_functions():
    result = map_blocks(squared_sum, ARRAY, BUDGET, axis=1, device="cpu")
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, squared_sum(ARRAY))


def test_a_dask_array_is_cut_into_chunks_that_fit():
    dask_array = pytest.importorskip("dask.array")
    lazy = dask_array.from_array(ARRAY, chunks=(13, 41, 70, 25))
    needed = 2 * (ARRAY.size // 41) * 9 * 4 + 3
    result = map_blocks(neighbours, lazy, needed, axis=1, device="cpu", factor=2)
    assert max(result.chunks[1]) == 7
    np.testing.assert_array_equal(result.compute(scheduler="sync"), neighbours(ARRAY, factor=2))
    sums = map_blocks(squared_sum, lazy, SMALL, axis=0, device="cpu")
    assert sums.shape == (13, 41, 70)
    np.testing.assert_array_equal(sums.compute(scheduler="sync"), squared_sum(ARRAY))
    with pytest.raises(UsageError, match="budget for one call"):
        map_blocks(neighbours, lazy, axis=1)


def test_a_data_array_keeps_its_coordinates():
    xarray = pytest.importorskip("xarray")
    array = xarray.DataArray(ARRAY, dims=("t", "z", "y", "x"), coords={"t": np.arange(13)})
    result = map_blocks(neighbours, array, BUDGET, axis=1, device="cpu")
    assert result.dims == array.dims
    np.testing.assert_array_equal(result.t, array.t)
    np.testing.assert_array_equal(result.data, neighbours(ARRAY))


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        ([1, 2], {}, "list is not an array"),
        (ARRAY, {"axis": 4}, "4 dims has no axis 4"),
        (np.float32(3), {}, "cannot be cut into blocks"),
        (ARRAY, {"memory": "much"}, "much"),
    ],
)
def test_wrong_arguments_are_named(array, options, message):
    with pytest.raises(MaxslicesError, match=message):
        map_blocks(neighbours, array, **{"memory": BUDGET, "device": "cpu"} | options)


def test_a_function_whose_result_has_other_elements_along_the_axis_is_refused():
    with pytest.raises(MaxslicesError, match="the number of elements along this axis must"):
        map_blocks(lambda data: data[:, ::2], ARRAY, BUDGET, axis=1, device="cpu")


def test_a_functions_error_names_it():
    with pytest.raises(MaxslicesError, match=r"gaussian.*unexpected keyword"):
        map_blocks(gaussian, ARRAY, BUDGET, device="cpu", wrong=3)


def test_an_error_in_a_function_names_its_own_line():
    def fails(block):
        return block.no_such_attribute

    line = fails.__code__.co_firstlineno + 1
    with pytest.raises(MaxslicesError, match=rf"fails cannot .*test_map_blocks\.py:{line}\)"):
        map_blocks(fails, np.ones((8, 6, 5)), "1GB", device="cpu")
