"""Results do not depend on the block, nor on the place of the data between sections."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest

from maxslices import Pipeline, Registry, from_ledger, run
from maxslices.core.block_memory import PYTHON_BYTES
from maxslices.io import ArrayScan
from maxslices.io.scans.loader import LoaderOptions
from tests.planner.fakes import fakes
from tests.runner.resumable import results_in

SHAPE = (23, 17, 64)
FIND = {"method": "find_middle", "id": "f", "side_outputs": {"cor": "axis"}}
FAR = {"method": "reaching", "parameters": {"reach": 4}}
ALL = {"method": "extremes", "id": "e", "side_outputs": {"low": "low", "high": "high"}}


def refers(to):
    return {"method": "scaled_by", "parameters": {"centre": f"${{{{{to}}}}}"}}


def source():
    rng = np.random.default_rng(1)
    return ArrayScan(
        rng.integers(0, 4000, SHAPE, np.uint16),
        flats=rng.integers(3000, 4000, (5, *SHAPE[1:]), np.uint16),
        darks=rng.integers(0, 9, (3, *SHAPE[1:]), np.uint16),
        angles=np.linspace(0, np.pi, SHAPE[0], dtype=np.float32),
    )


PIPELINES = {
    "one": ["to_float"],
    "projections": ["to_float", "negate"],
    "halo of projections": ["to_float", FAR, "negate"],
    "halo of sinograms": ["to_float", "work", "neighbours"],  # with 16 of 17 rows, all in one block
    "two halos": ["neighbours", "neighbours", "reaching"],
    "three sections": ["negate", "work", "negate"],
    "other shape": ["to_float", {"method": "crop", "parameters": {"keep": 5}}, "work", "negate"],
    "frames of projections": ["flat_field", "negate"],
    "frames of sinograms": ["flat_field", "work"],
    "frames with a halo": ["flat_field", "neighbours"],
    "angles of projections": ["turn", "negate"],
    "angles of sinograms": ["turn", "work"],
    "angles with a halo": ["turn", "reaching"],
    "few slices": ["to_float", FIND, refers("f.side_outputs.axis")],
    "few slices with a halo": ["to_float", "neighbours", FIND, refers("f.side_outputs.axis")],
    "all slices": ["to_float", "neighbours", ALL, refers("e.side_outputs.high")],
}  # fmt: skip


def result(steps, **kwargs):
    return run(source(), Pipeline.from_steps(steps, fakes), device="cpu", **kwargs)


@pytest.mark.parametrize("case", PIPELINES)
def test_the_result_does_not_depend_on_the_block(case):
    whole = result(PIPELINES[case], block=1000)
    for block in (1, 2, 5, 16):
        cut = result(PIPELINES[case], block=block)
        np.testing.assert_array_equal(cut.result, whole.result)
        assert cut.side_results == whole.side_results


@pytest.mark.parametrize("format", ["hdf5", "tiff"])
def test_files_equal_results_in_memory(tmp_path, format):
    steps = ["to_float", {"method": "negate", "save_result": True}, "neighbours", "work"]
    expected = result(steps).result
    report = result(steps, out=tmp_path / "out", block=4, format=format)
    assert report.result is None
    assert [path.name.split(".")[0] for path in report.files] == ["02_negate", "result"]
    got = [run(path, Pipeline.from_steps(["to_float"], fakes), device="cpu").result
           for path in report.files]  # fmt: skip
    np.testing.assert_array_equal(got[1], expected)
    np.testing.assert_array_equal(got[0], result(steps[:2]).result)
    assert results_in(tmp_path / "out") == {path.name for path in report.files}


def test_scratch_file_between_sections_does_not_change_the_result(tmp_path):
    steps = ["to_float", "reaching", "work", "negate"]
    expected = result(steps).result
    budget = PYTHON_BYTES + 120_000
    report = result(steps, out=tmp_path / "out", memory=budget)
    assert [s.destination for s in report.plan.sections] == ["scratch file"] * 2 + ["result"]
    with h5py.File(report.files[0]) as file:
        np.testing.assert_array_equal(file["entry/data/data"], expected)
    assert results_in(tmp_path / "out") == {"result.h5"}


def test_side_results_alone_read_only_sampled_slices():
    # An ArrayScan is opened again with the loader's options. Other sources are read directly.
    scan, read = source().with_options(LoaderOptions()), []
    original = scan.read
    scan.read = lambda dim, start, stop, out: (
        read.append((dim, start, stop)), original(dim, start, stop, out)
    )  # fmt: skip
    report = run(scan, Pipeline.from_steps([FIND], fakes), device="cpu")
    assert read == [(1, 8, 9)]
    assert list(report.side_results) == ["find_middle.cor"]


def test_a_method_that_runs_twice_reports_both_side_results():
    report = result(["to_float", "extremes", "negate", "extremes"])
    assert list(report.side_results) == [
        "extremes.low", "extremes.high", "extremes_2.low", "extremes_2.high"
    ]  # fmt: skip
    assert report.side_results["extremes_2.low"] == -report.side_results["extremes.high"]


def test_method_may_work_in_place_without_changing_the_scan():
    registry = Registry()

    @from_ledger
    def one(m, shape, dtype):
        m.alloc(shape, dtype)
        m.alloc(shape, dtype)

    def in_place(data):
        data *= np.float32(2)
        return data

    registry.register(in_place, pattern="projection", calc_max_slices=one)
    registry.register(
        in_place, name="look", pattern="projection", calc_max_slices=one,
        side_results=("value",), sample_slices=lambda n_slices: [1],
    )  # fmt: skip
    data = np.random.default_rng(2).random(SHAPE, np.float32)
    before = data.copy()
    pipeline = Pipeline.from_steps(["look", "in_place", "in_place"], registry)
    report = run(data, pipeline, device="cpu", block=4)
    np.testing.assert_array_equal(report.result, before * 4)
    np.testing.assert_array_equal(data, before)
    alone = run(data, Pipeline.from_steps(["look"], registry), device="cpu")
    assert (alone.sections[0].slices_per_s, alone.sections[0].blocks) == (None, ())
    assert re.search(r"1 look +- ", str(alone))


def test_preview_of_an_array_in_any_layout():
    data = np.random.default_rng(2).random(SHAPE, np.float32)
    loader = {"method": "standard_tomo", "parameters": {"preview": {"angles": {"start": 5}}}}
    for array in (data, data.astype(">f4"), np.asfortranarray(data)):
        got = run(array, Pipeline.from_steps([loader, "negate"], fakes), device="cpu", block=4)
        np.testing.assert_array_equal(got.result, -data[5:])
