"""Faults during a run: a clear message, and no results that look complete."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maxslices import Pipeline, Registry, run
from maxslices.errors import EstimatorError, MethodError, OutOfMemoryError, StoreError
from maxslices.io import LoaderOptions, SideData
from maxslices.runner import RunFolder
from maxslices.system import disk_space
from tests.planner.fakes import fakes
from tests.planner.ledgers import two
from tests.runner.resumable import results_in

DATA = np.random.default_rng(5).random((20, 6, 40), np.float32)


def run_function(function, out=None, pattern="all", **kwargs):
    registry = Registry()
    declared = {
        key: kwargs.pop(key)
        for key in ("halo", "side_results", "combine", "sample_slices", "output_dtype")
        if key in kwargs
    }
    registry.register(function, name="suspect", pattern=pattern, calc_max_slices=two, **declared)
    pipeline = Pipeline.from_steps(["suspect"], registry)
    return run(DATA, pipeline, out, device="cpu", **{"block": 8, **kwargs})


def fail(data):
    raise ValueError("kernel_size must be odd, not 4")


WRONG = {
    "raises": (
        fail,
        "suspect failed on projections 0 to 7: ValueError: kernel_size must be odd, not 4",
    ),
    "nothing": (
        lambda data: None,
        "suspect returned nothing: it must return an array with three axes, such as 8x6x40 float32",
    ),
    "number": (lambda data: 3.0, "suspect returned a float: it must"),
    "other dtype": (
        lambda data: data.astype(np.float64),
        "suspect returned 8x6x40 float64; by its declaration it is 8x6x40 float32: correct",
    ),
    "other dims": (lambda data: data[:, :, :3], "suspect returned 8x6x3 float32; by its"),
    "fewer slices": (
        lambda data: data[1:],
        "suspect returned 7x6x40 float32 with 7 slices along axis 0: it must return",
    ),
    "2D": (
        lambda data: data[0],
        "suspect returned 6x40 float32: it must return an array with three axes",
    ),
    "text": (
        lambda data: data.astype("U3"),
        "suspect returned 8x6x40 <U3: it must return an array of numbers",
    ),
    "mask": (
        lambda data: np.ma.masked_less(data, 3),
        "suspect returned a MaskedArray, whose mask would be lost: return its .filled() array",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_method_that_breaks_its_declaration_is_named(tmp_path, case):
    function, expected = WRONG[case]
    with pytest.raises(MethodError) as caught:
        run_function(function, tmp_path / "a" / "out")
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda data: (data, data), "a tuple: it must return an array with three axes"),
        (lambda data: data.astype(object), "1x6x40 object: it must return an array of numbers"),
        (lambda data: data.view([("a", "f4")]), "it must return an array of numbers"),
        (lambda data: memoryview(data.copy()), "1x6x40 None: it must return an array of numbers"),
        (lambda data: np.ma.masked_less(data, 3), "a MaskedArray, whose mask would be lost"),
    ],
)
def test_return_value_that_is_not_an_array_is_named_by_the_measurement(returned, message):
    registry = Registry()
    registry.register(returned, name="suspect", module="lab", pattern="all")
    with pytest.raises(EstimatorError) as caught:
        run(DATA, Pipeline.from_steps(["suspect"], registry), device="cpu")
    assert str(caught.value).startswith("lab.suspect cannot be measured: it returned ")
    assert message in str(caught.value)


def test_dtype_that_differs_from_the_estimators_is_named():
    def promises_double(slice_dim, other_dims, dtype, available_memory, device="cuda"):
        return available_memory // (2 * other_dims[0] * other_dims[1] * dtype.itemsize), "float64"

    registry = Registry()
    registry.register(
        lambda data: data + data,
        name="suspect",
        module="lab",
        pattern="all",
        calc_max_slices=promises_double,
    )
    with pytest.raises(MethodError) as caught:
        run(DATA, Pipeline.from_steps(["suspect"], registry), device="cpu", block=8)
    message, _, place = str(caught.value).partition(" (")
    assert message == (
        "suspect returned 8x6x40 float32; by its estimator it is 8x6x40 float64: correct the dtype "
        "that calc_max_slices promises_double returns"
    )
    assert re.fullmatch(r".*test_faults\.py:\d+\)", place)


@pytest.mark.parametrize(("n", "which"), [(4, "projections 16 to 19"), (1, "projection 0")])
def test_failed_slices_are_numbered(n, which):
    def picky(data):
        return 1 / 0 if len(data) == n else data

    with pytest.raises(MethodError, match=f"failed on {which}: ZeroDivisionError"):
        run_function(picky, block=8 if n > 1 else 1)


def test_wrong_number_of_side_results_is_named():
    with pytest.raises(MethodError, match="returned 1 side results, but declares 2: low, high"):
        run_function(lambda data: 1.0, side_results=("low", "high"), combine=lambda parts: parts[0])


def test_failed_combination_is_named():
    def combine(parts):
        raise KeyError("x")

    with pytest.raises(MethodError, match="suspect: combining the side results of 3 blocks failed"):
        run_function(lambda data: 1.0, side_results=("low",), combine=combine)


@pytest.mark.parametrize("pattern", ["projection", "sinogram"])
@pytest.mark.parametrize("halo", [0, 2])
def test_block_is_halved_when_memory_runs_out(tmp_path, pattern, halo):
    def hungry(data, slice_dim):
        if data.shape[slice_dim] > (5 if halo else 3):
            raise MemoryError("Unable to allocate 1. TiB")
        return data * np.float32(2)

    total = DATA.shape[0 if pattern == "projection" else 1]
    report = run_function(hungry, None, pattern, halo=halo, block=total)
    np.testing.assert_array_equal(report.result, DATA * np.float32(2))
    section = report.sections[0]
    if not halo:
        assert (section.n_splits, section.smallest_block) == {20: (3, 3), 6: (1, 3)}[total]
    times = "once" if section.n_splits == 1 else f"{section.n_splits} times"
    assert f"the block was halved {times}, from {total} to {section.smallest_block}" in str(report)


def test_out_of_memory_on_one_slice_ends_the_run(tmp_path):
    def hungry(data):
        raise MemoryError("Unable to allocate 1. TiB")

    with pytest.raises(OutOfMemoryError) as caught:
        run_function(hungry, tmp_path / "out")
    message, _, place = str(caught.value).partition(" (")
    assert message == (
        "memory ran out on a single projection, number 0, in the section of suspect: suspect "
        "failed on projection 0: MemoryError: Unable to allocate 1. TiB"
    )
    assert re.fullmatch(r".*test_faults\.py:\d+\)", place)
    assert not (tmp_path / "out").exists()


def run_fakes(out, *steps, **kwargs):
    return run(DATA, Pipeline.from_steps(steps or ["negate"], fakes), out, device="cpu", **kwargs)


def test_finished_run_is_replaced_only_with_overwrite(tmp_path):
    first = run_fakes(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(StoreError, match=r"already contains a run .* --overwrite"):
        run_fakes(tmp_path, "work")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    (tmp_path / "notes.txt").write_text("mine")
    second = run_fakes(tmp_path, "work", overwrite=True)
    assert second.files == first.files
    assert (tmp_path / "notes.txt").read_text() == "mine"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["sections"][0]["methods"] == ["work"]


@pytest.mark.parametrize("format", ["hdf5", "tiff"])
def test_overwrite_never_removes_the_scan(tmp_path, format):
    out = tmp_path / "out"
    result = run_fakes(out, format=format).files[0]
    pipeline = Pipeline.from_steps(["negate"], fakes)
    scans = [result, tmp_path / "out" / ".." / "out" / result.name, *result.glob("*.tif")]
    for scan in scans:
        with pytest.raises(StoreError, match="is read, and --overwrite would remove it"):
            run(scan, pipeline, out, device="cpu", overwrite=True)
    sides = LoaderOptions(flats=SideData(result), darks="ignore")
    with pytest.raises(StoreError, match="is read, and --overwrite would remove it"):
        run(DATA, replace(pipeline, loader=sides), out, device="cpu", overwrite=True)
    other = out / "other.npy"
    np.save(other, DATA)
    run(other, pipeline, out, device="cpu", overwrite=True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": [3]}'])
def test_unreadable_report_is_not_overwritten(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(StoreError, match="Remove the folder by hand"):
        run_fakes(tmp_path, overwrite=True)


def test_taken_name_is_found_before_anything_runs(tmp_path):
    (tmp_path / "result.h5").write_text("mine")
    calls = []

    def note(data):
        calls.append(1)
        return data

    with pytest.raises(StoreError, match=r"result.h5 already exists"):
        run_function(note, tmp_path)
    assert not calls
    assert [p.name for p in tmp_path.iterdir()] == ["result.h5"]


def test_unusable_folder_is_rejected_at_once(tmp_path, monkeypatch):
    (tmp_path / "out").write_text("mine")
    for name in ("out", "out/deeper"):
        with pytest.raises(StoreError, match=r"out is a file: choose a folder"):
            run_fakes(tmp_path / name)
    with pytest.raises(StoreError, match="File name too long"):
        RunFolder(tmp_path / ("x" * 300))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match="is not writable: choose another folder"):
        RunFolder(tmp_path / "new")


def test_full_disk_leaves_nothing(tmp_path, monkeypatch):
    original, written = os.pwrite, []

    def full(fd, data, offset):
        if len(written) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(1)
        return original(fd, data, offset)

    monkeypatch.setattr(disk_space.os, "pwrite", full)
    with pytest.raises(StoreError, match="the disk is full"):
        run_fakes(tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_run_without_space_for_its_report_resumes(tmp_path, monkeypatch):
    original = os.replace

    def full(source, target):
        if Path(target).name == "report.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(source, target)

    monkeypatch.setattr(os, "replace", full)

    out = tmp_path / "out"
    with pytest.raises(
        StoreError, match=r"report.json: the disk is full.*; finished slices are kept .*--resume"
    ):
        run_fakes(out)
    assert [path.name for path in out.iterdir()] == [".run"]
    monkeypatch.undo()
    run_fakes(out, resume=True)
    assert results_in(out) == {"result.h5"}


def test_folder_removed_during_the_run_is_named(tmp_path):
    def gone(data):
        shutil.rmtree(tmp_path / "deep", ignore_errors=True)
        return data + 1

    with pytest.raises(StoreError, match=r"deep/out.*No such file"):
        run_function(gone, tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_side_results_that_json_lacks_are_reported_as_text(tmp_path):
    report = run_function(
        lambda data: {"a": np.float32(1), "b": object()},
        tmp_path,
        side_results=("value",),
        combine=lambda parts: parts[0],
    )
    assert json.loads((tmp_path / "report.json").read_text())["side_results"]
    assert report.side_results["suspect.value"]["a"] == 1


def test_space_for_all_results_is_checked(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    free = int(1.5 * DATA.nbytes) + 100_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    run_fakes(tmp_path / "one", "negate")
    with pytest.raises(StoreError, match="the disk has"):
        run_fakes(tmp_path / "two", *[{"method": "negate", "save_result": True}] * 40)
