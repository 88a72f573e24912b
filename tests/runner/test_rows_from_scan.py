"""Methods along either axis join those on sinograms, where the scan's rows can be read."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from maxslices import check, plan, run
from maxslices.io import ArrayScan, Source

SHAPE = (31, 14, 40)
STEPS = [
    "dark_flat_field_correction",
    "minus_log",
    {"method": "median_filter", "parameters": {"kernel_size": 3}},
    "remove_stripe_ti",
    "fbp",
]


def scan(path, **options):
    random = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        group = file.create_group("exchange")
        frames = random.integers(100, 4000, SHAPE, np.uint16)
        group.create_dataset("data", data=frames, **options)
        group["data_white"] = random.integers(3900, 4100, (4, *SHAPE[1:]), np.uint16)
        group["data_dark"] = random.integers(8, 12, (3, *SHAPE[1:]), np.uint16)
        group["theta"] = np.linspace(0, 180, SHAPE[0])
    return path


@pytest.fixture
def plain(tmp_path):
    return scan(tmp_path / "plain.h5")


@pytest.fixture
def compressed(tmp_path):
    return scan(tmp_path / "compressed.h5", chunks=(1, *SHAPE[1:]), compression="gzip")


def sections(planned):
    """Axis, number of the first step, and steps of each section."""
    return [[each.slice_dim, each.steps[0].index, len(each.steps)] for each in planned.sections]


def data(folder):
    with h5py.File(folder / "result.h5") as file:
        return file["entry/data/data"][()]


def test_rows_are_read_where_frames_are_not_compressed(plain, compressed):
    assert sections(plan(plain, STEPS, device="cpu")) == [[1, 0, len(STEPS)]]
    assert sections(plan(compressed, STEPS, device="cpu")) == [[0, 0, 3], [1, 3, 2]]
    assert "section 1, sinograms: dark_flat" in check(STEPS, plain)
    assert "section 1, projections: dark_flat" in check(STEPS, compressed)


@pytest.mark.parametrize("block", [1, 3, "max"])
def test_either_way_the_bits_are_the_same(tmp_path, plain, compressed, block):
    run(plain, STEPS, tmp_path / "rows", device="cpu", block=block)
    run(compressed, STEPS, tmp_path / "frames", device="cpu", block=block)
    assert np.array_equal(data(tmp_path / "rows"), data(tmp_path / "frames"))


def test_a_plan_for_rows_is_carried_out_on_compressed_frames(tmp_path, plain, compressed):
    planned = plan(plain, STEPS, device="cpu", block=3)
    report = run(compressed, STEPS, tmp_path / "out", device="cpu", plan=planned)
    assert len(report.sections) == 1
    run(plain, STEPS, tmp_path / "plain", device="cpu", plan=planned)
    assert np.array_equal(data(tmp_path / "out"), data(tmp_path / "plain"))


def test_a_source_of_ones_own_that_says_nothing_is_read_in_frames():
    class Own(Source):
        """A scan with the methods that all have, and no other."""

        name = "own"

        def __init__(self, source):
            self.spec, self.angles, self.source = source.spec, source.angles, source

        def read(self, slice_dim, start, stop, out):
            self.source.read(slice_dim, start, stop, out)

        def read_side(self, name, slice_dim, start, stop):
            raise LookupError(name)

        def close(self):
            pass

    arrays = ArrayScan(np.ones(SHAPE, np.uint16), angles=np.linspace(0, 3, SHAPE[0]))
    steps = STEPS[1:]
    assert len(plan(arrays, steps, device="cpu").sections) == 1
    own = Own(arrays)
    own_plan = plan(own, steps, device="cpu")
    assert [each.slice_dim for each in own_plan.sections] == [0, 1]
