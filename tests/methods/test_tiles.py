"""Methods that declare tile_halo: tiles of a slice give the bits of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices.devices.cpu import CpuBackend
from maxslices.estimate.tiling import Tiling
from maxslices.runner.blocks.tiled_call import in_tiles
from maxslices_methods import corr, denoise, normalize

RNG = np.random.default_rng(8)
FRAMES = RNG.random((6, 75, 83), np.float32) + np.float32(0.5)
COUNTS = RNG.integers(1, 60000, (9, 75, 83), np.uint16)
SIDE = {"flats": COUNTS[:7] + np.uint16(100), "darks": COUNTS[4:] // np.uint16(300)}

CASES = [
    (corr.median_filter, {"kernel_size": 3}, FRAMES, {}),
    (corr.median_filter, {"kernel_size": 7}, COUNTS, {}),
    (corr.remove_outlier, {"kernel_size": 5, "dif": 0.2}, FRAMES, {}),
    (
        denoise.total_variation_rof,
        {"iterations": 5, "regularisation_parameter": 2.0, "time_marching_parameter": 0.1},
        FRAMES,
        {},
    ),
    (
        denoise.total_variation_pd,
        {"iterations": 6, "nonnegativity": True, "regularisation_parameter": 0.3},
        FRAMES,
        {},
    ),
    (
        denoise.total_variation_pd,
        {"iterations": 4, "isotropic": False, "regularisation_parameter": 2e4},
        COUNTS,
        {},
    ),
    (normalize.minus_log, {}, FRAMES, {}),
    (normalize.dark_flat_field_correction, {}, COUNTS, SIDE),
]


@pytest.mark.parametrize("slice_dim", [0, 1])
@pytest.mark.parametrize(("function", "parameters", "data", "supplied"), CASES)
def test_tiles_give_the_bits_of_the_whole(function, parameters, data, supplied, slice_dim):
    meta = function.meta
    if slice_dim not in meta.slice_dims():
        pytest.skip("not for these slices")
    if slice_dim == 1:
        data = np.ascontiguousarray(data.swapaxes(0, 1))
        supplied = {name: frames[:, : data.shape[1]] for name, frames in supplied.items()}
    whole = function(data, **parameters, **supplied)
    dims = data.shape[1:] if slice_dim == 0 else (data.shape[0], data.shape[2])
    halo = meta.tile_margin(**parameters)
    assert halo is not None

    def call(part, given):
        return function(part, **parameters, **given)

    for parts in [(2, 1), (1, 2), (2, 2)]:
        tiling = Tiling.into(dims, parts, halo)
        found = in_tiles(call, data, supplied, tiling, slice_dim, whole.dtype, CpuBackend())
        np.testing.assert_array_equal(found, whole)
