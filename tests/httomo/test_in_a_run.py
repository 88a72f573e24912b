"""Context arguments of these methods: the position of a block, and the start of the preview."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import maxslices
from maxslices import Registry, from_ledger, method
from maxslices.io import LoaderOptions, Preview
from maxslices.pipeline import Pipeline

methods = Registry()
seen: list[tuple[int, int, tuple[int, int], Path | None]] = []


@from_ledger
def _same_size(m, shape, dtype):
    m.alloc(shape, dtype)


@method(
    "all",
    calc_max_slices=_same_size,
    side_results=("n",),
    combine=len,
    registry=methods,
)
def tell(data, *, slice_dim=0, first_slice=-1, detector_start=None, results_folder=None):
    seen.append((first_slice, data.shape[slice_dim], detector_start, results_folder))
    return len(data)


@method("all", calc_max_slices=_same_size, halo=1, registry=methods)
def widened(data):
    return data


@pytest.mark.parametrize("steps", [["tell"], ["widened", "tell"]])
def test_methods_get_the_position_of_the_block(steps, tmp_path):
    seen.clear()
    scan = np.zeros((11, 6, 5), np.float32)
    loader = LoaderOptions(preview=Preview(detector_y=(2, None), detector_x=(1, 4)))
    checked = Pipeline.from_steps(steps, methods)
    pipeline = Pipeline(checked.steps, loader)
    maxslices.run(scan, pipeline, tmp_path / "out", device="cpu", block=4)
    folder = tmp_path / "out"
    assert seen == [(start, min(4, 11 - start), (2, 1), folder) for start in (0, 4, 8)]


def test_a_result_in_memory_has_no_folder():
    seen.clear()
    maxslices.run(np.zeros((4, 3, 2), np.float32), Pipeline.from_steps(["tell"], methods))
    assert seen == [(0, 4, (0, 0), None)]
