"""What the runner costs over the same methods called in a plain loop over the same blocks.

Off by default, as all benchmarks are: ``pytest tests/benchmarks/test_runner_overhead.py
--benchmark-only`` shows both, ``--benchmark-disable`` runs each once, and
``python -m tests.benchmarks.test_runner_overhead`` prints the ratio.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from maxslices import Pipeline, registry, run
from maxslices.io.scans.array_source import ArrayScan

SHAPE = (384, 128, 640)
BLOCK = 12
ALLOWED = 1.10
"""Most that the runner may take, as a multiple of the loop's time."""
CASES = {
    "median": ["dark_flat_field_correction", "minus_log", "median_filter"],
    "pointwise": ["dark_flat_field_correction", "minus_log"],
}


def make_scan():
    rng = np.random.default_rng(0)
    data = rng.integers(100, 4000, SHAPE, np.uint16)
    flats = rng.integers(3900, 4100, (20, *SHAPE[1:]), np.uint16)
    darks = rng.integers(0, 90, (20, *SHAPE[1:]), np.uint16)
    return data, flats, darks


def plain_loop(names, data, flats, darks):
    """Call the methods block after block, array in and array out, as one would by hand."""
    out = np.empty(data.shape, np.float32)
    supplied = {"flats": flats, "darks": darks, "slice_dim": 0}
    metas = [registry.get(name) for name in names]
    halo = max(meta.halo_slices()[0] for meta in metas)
    for start in range(0, len(data), BLOCK):
        stop = min(start + BLOCK, len(data))
        first, last = max(0, start - halo), min(len(data), stop + halo)
        block = data[first:last]
        for meta in metas:
            block = meta.function(block, **{name: supplied[name] for name in meta.supplied})
        out[start:stop] = block[start - first : stop - first]
    return out


def with_runner(names, data, flats, darks):
    """Have the runner do the same."""
    source = ArrayScan(data, flats=flats, darks=darks)
    pipeline = Pipeline.from_steps(names)
    return run(source, pipeline, device="cpu", memory="4GB", block=BLOCK).result


@pytest.mark.parametrize("way", [plain_loop, with_runner])
@pytest.mark.parametrize("case", CASES)
def test_runner_and_plain_loop(benchmark, case, way):
    scan = make_scan()
    result = benchmark.pedantic(way, (CASES[case], *scan), rounds=5, warmup_rounds=1)
    np.testing.assert_array_equal(result, plain_loop(CASES[case], *scan))


def overhead(case, rounds=7):
    """Return the runner's processor time over the loop's, and that; the shortest of rounds."""
    scan = make_scan()
    taken = {plain_loop: [], with_runner: []}
    for _ in range(rounds + 1):
        for way, times in taken.items():
            began = time.process_time()
            way(CASES[case], *scan)
            times.append(time.process_time() - began)
    loop, runner = (min(times[1:]) for times in taken.values())
    return runner / loop, loop


@pytest.mark.benchmark
def test_the_runner_costs_at_most_a_tenth(benchmark):
    """The pipeline that a scan starts with, a filter of some work included."""
    ratio, _ = benchmark.pedantic(overhead, ("median",), rounds=1)
    assert ratio <= ALLOWED


if __name__ == "__main__":
    for name in CASES:
        ratio, loop_s = overhead(name)
        print(f"{name}: plain loop {loop_s:.2f} s, runner {100 * (ratio - 1):+.1f} %")
