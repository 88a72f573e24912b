"""Runs whose result would be wrong without an error: they are rejected, or warn of it."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from maxslices import Pipeline, Registry, method, run
from maxslices.errors import SourceError
from tests.io import scans
from tests.planner.fakes import fakes

DATA = scans.frames("uint16")


_meanwhile = []
"""Changes of the scan by another program during the next block."""
methods = Registry()


@method(
    "all", calc_max_slices=fakes["to_float"].estimator, output_dtype="float32", registry=methods
)
def disturbed(data, factor: float = 1.0):
    while _meanwhile:
        _meanwhile.pop()()
    return np.float32(factor) * data


def pipeline(*before, factor=1.0):
    step = {"method": "disturbed", "parameters": {"factor": factor}}
    return Pipeline.from_steps([*before, step], methods)


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 4)


def changed(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(file.read(1))
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 10**9))


def removed(path: Path) -> None:
    path.unlink()


CHANGES = {
    replaced: "was changed, or replaced",
    grown: "was changed, or replaced",
    cut: "was changed, or replaced",
    changed: "was changed, or replaced",
    removed: "was removed",
}
"""Change of a scan -> text of its error."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["hdf5", "npy", "tiffs"])
def test_scan_that_changes_during_the_run_ends_it(tmp_path, kind, change, monkeypatch):
    path = victim = scans.write_dls(tmp_path / "a.nxs", DATA)
    if kind == "npy":
        path = victim = scans.write_npy(tmp_path / "a.npy", DATA)
    if kind == "tiffs":
        path = scans.write_tiffs(tmp_path / "a", DATA)
        victim = sorted(path.iterdir())[0]
    _meanwhile.append(lambda: change(victim))
    with pytest.raises(SourceError, match=f"{victim.name}: .*{CHANGES[change]}"):
        run(path, pipeline(), tmp_path / "out", device="cpu", block=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["flats", "virtual"])
def test_change_of_another_file_of_the_scan_ends_the_run(tmp_path, kind):
    raw = scans.write_dls(tmp_path / "raw.h5", DATA)
    path = scans.write_npy(tmp_path / "a.npy", DATA)
    flats = {"file": str(raw)} if kind == "flats" else "auto"
    if kind == "virtual":
        path = tmp_path / "a.h5"
        layout = h5py.VirtualLayout(DATA.shape, DATA.dtype)
        layout[:] = h5py.VirtualSource(raw.name, "entry1/tomo_entry/data/data", DATA.shape)
        with h5py.File(path, "w") as file:
            file.create_virtual_dataset("exchange/data", layout)
    _meanwhile.append(lambda: changed(raw))
    loader = {"method": "standard_tomo", "parameters": {"flats": flats}}
    with pytest.raises(SourceError, match=r"raw\.h5: was changed"):
        run(path, pipeline(loader), tmp_path / "out", device="cpu")


@pytest.mark.parametrize(
    ("factor", "fault"),
    [(0.0, "is 0 throughout"), (float("nan"), "is NaN throughout"), (1.0, None)],
)
@pytest.mark.parametrize("out", ["folder", "memory"])
def test_constant_result_causes_a_warning(tmp_path, factor, fault, out):
    steps = pipeline(factor=factor)
    report = run(DATA, steps, tmp_path / "out" if out == "folder" else None, device="cpu")
    name = "result.h5" if out == "folder" else "the output of disturbed"
    if fault is None:
        assert report.sections[-1].warnings == ()
        assert "warning" not in str(report)
        return
    warning = report.sections[-1].warnings[0]
    assert warning.startswith(f"{name} {fault}")
    assert f"warning: {name} {fault}" in " ".join(str(report).split())
    if out == "folder":
        assert fault in (tmp_path / "out" / "report.json").read_text()


def test_one_different_pixel_is_enough(tmp_path):
    data = np.zeros((9, 40, 50), np.uint16)
    data[-1, -1, -1] = 1
    report = run(data, pipeline(), tmp_path / "out", device="cpu", block=2)
    assert report.sections[-1].warnings == ()


def test_scan_with_missing_frames_is_rejected(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("exchange/data", DATA.shape, "u2", chunks=(1, 7, 11))[:12] = DATA[:12]
    with pytest.raises(SourceError, match="3 of 15 projections were never written"):
        run(path, pipeline(), device="cpu")
    report = run(path, pipeline(), device="cpu", angles=":12")
    np.testing.assert_array_equal(report.result, DATA[:12])
