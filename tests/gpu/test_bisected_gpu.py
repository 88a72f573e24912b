"""Searching on a GPU: memory outside of pools, torch's allocator, an error that stays."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices.devices import select_backend
from maxslices.devices.device_count import count_devices
from maxslices.errors import EstimatorError
from maxslices.estimate import ModelRequest
from maxslices.estimate.bisected import bisect_memory
from tests.gpu.bisected_gpu_methods import FIXED_BYTES, SLICE_BYTES, on_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(count_devices() == 0, reason="needs a CUDA device and CuPy"),
]

FLOAT = np.dtype(np.float32)
MIB = 2**20


def test_memory_outside_the_pool_is_found_to_the_slice():
    n, request = 120, ModelRequest(on_gpu["raw"], 0, (1024, 1024), FLOAT, {}, 500)
    needed = FIXED_BYTES + n * (SLICE_BYTES + 4 * MIB)
    found = bisect_memory(request, select_backend("cuda:0"), available_bytes=needed)
    assert n - 1 <= found.n_slices <= n
    assert found.fails_at == found.n_slices + 1
    assert found.is_settled
    model = found.model()
    for k in (1, 17, 60, 100):
        exact = FIXED_BYTES + k * (SLICE_BYTES + 4 * MIB)
        assert exact <= model.bytes(k) <= exact * 1.01 + found.margin_bytes + 16 * MIB


@pytest.mark.parametrize("name", ["pooled", "convolved"])
def test_what_runs_is_bounded(name):
    if name == "convolved":
        pytest.importorskip("torch")
    request = ModelRequest(on_gpu[name], 0, (1080, 1280), FLOAT, {}, 2000)
    found = bisect_memory(request, select_backend("cuda:0"), available_bytes=2 * 10**9)
    assert found.is_settled
    assert found.fails_at is not None
    assert found.fails_at - found.n_slices <= max(1, found.n_slices // 100)
    assert {a.outcome for a in found.attempts} == {"ran", "out of memory"}
    assert (found.output_dtype, found.output_dims) == ("float32", (1080, 1280))


def test_an_error_that_stays_is_one_and_leaves_this_process_well():
    request = ModelRequest(on_gpu["wild"], 0, (64, 64), FLOAT, {}, 64)
    with pytest.raises(EstimatorError, match=r"on 4 slices it raised .*IllegalAddress"):
        bisect_memory(request, select_backend("cuda:0"), available_bytes=10**9)
    import cupy

    assert float(cupy.arange(10).sum()) == 45.0
