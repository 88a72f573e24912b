"""Times of an estimator, of a start, and of the runner next to a plain loop.

Off by default, as times depend on the machine: ``pytest --benchmark-only tests/benchmarks`` shows
them side by side.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from maxslices import Pipeline, registry, run
from maxslices.io import ArrayScan

from ..methods.cases import CASES

REAL_SHAPE = (1801, 2160, 2560)
AVAILABLE_BYTES = 80 * 10**9
PACK = {case.method: case for case in reversed(CASES)}
COMMANDS = {"help": ("-m", "maxslices", "--help"), "import": ("-c", "import maxslices")}
SHAPE, BLOCK = (384, 128, 640), 12
STEPS = ("dark_flat_field_correction", "minus_log", "median_filter")


@pytest.mark.parametrize("name", sorted(PACK))
def test_estimator(benchmark, name):
    case, meta = PACK[name], registry.get(name)
    slice_dim = meta.slice_dims()[0] if case.slice_dim is None else case.slice_dim
    dims = tuple(n for axis, n in enumerate(REAL_SHAPE) if axis != slice_dim)
    arguments = (slice_dim, dims, np.dtype(case.dtype), AVAILABLE_BYTES)
    benchmark(meta.calc_max_slices, *arguments, **case.parameters)


@pytest.mark.parametrize("name", COMMANDS)
def test_start(benchmark, name):
    command = [sys.executable, *COMMANDS[name]]
    benchmark(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)


def plain_loop(data, flats, darks):
    """Call the methods block after block, as one would by hand."""
    out = np.empty(data.shape, np.float32)
    supplied = {"flats": flats, "darks": darks, "slice_dim": 0}
    metas = [registry.get(name) for name in STEPS]
    halo = max(meta.halo_slices()[0] for meta in metas)
    for start in range(0, len(data), BLOCK):
        stop = min(start + BLOCK, len(data))
        first, last = max(0, start - halo), min(len(data), stop + halo)
        block = data[first:last]
        for meta in metas:
            block = meta.function(block, **{name: supplied[name] for name in meta.supplied})
        out[start:stop] = block[start - first : stop - first]
    return out


def with_runner(data, flats, darks):
    """Have the runner do the same."""
    source, pipeline = ArrayScan(data, flats=flats, darks=darks), Pipeline.from_steps(list(STEPS))
    return run(source, pipeline, device="cpu", memory="4GB", block=BLOCK).result


@pytest.mark.parametrize("way", [plain_loop, with_runner])
def test_runner_beside_a_plain_loop(benchmark, way):
    rng = np.random.default_rng(0)
    data = rng.integers(100, 4000, SHAPE, np.uint16)
    flats = rng.integers(3900, 4100, (20, *SHAPE[1:]), np.uint16)
    darks = rng.integers(0, 90, (20, *SHAPE[1:]), np.uint16)
    result = benchmark.pedantic(way, (data, flats, darks), rounds=5, warmup_rounds=1)
    np.testing.assert_array_equal(result, plain_loop(data, flats, darks))
