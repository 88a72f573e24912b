"""What SECURITY.md promises; links, reports and records in shared folders are in tests/runner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile

from maxslices import Pipeline, run
from maxslices.errors import MaxslicesError, PipelineError, SourceError
from maxslices.io import LoaderOptions, open_source
from maxslices.pipeline.parameter_arguments import parse_parameters
from tests.io import scans
from tests.planner.fakes import fakes

DATA = scans.frames("uint16")
PROGRAM = f"{sys.executable} -m maxslices.cli.main"
CODE = ("object/apply:os.system [touch {}]", "name:os.system", "module:os")


def made_of(text, path):
    path.write_text(text)
    return Pipeline.from_file(path, fakes)


@pytest.mark.parametrize("code", CODE)
def test_a_pipeline_runs_no_code_of_its_own(tmp_path, code):
    value = "!!python/" + code.format(tmp_path / "ran")
    with pytest.raises(PipelineError, match="is not supported: give plain values"):
        made_of(f"- method: to_float\n  parameters:\n    factor: {value}\n", tmp_path / "p.yaml")
    with pytest.raises(MaxslicesError, match="is not supported: give plain values"):
        parse_parameters([f"factor={value}"])
    assert not (tmp_path / "ran").exists()


def test_a_module_path_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PipelineError):
        made_of("- method: to_float\n  module_path: hostile\n", tmp_path / "p.yaml")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("behind", ["pipe", "/dev/zero", "folder"])
def test_what_is_no_file_is_not_opened(tmp_path, behind):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["exchange/data"] = h5py.ExternalLink(behind, "data")
    with pytest.raises(SourceError, match=r"is a link into .*, which is no file"):
        open_source(tmp_path / "link.h5")
    layout = h5py.VirtualLayout(DATA.shape, DATA.dtype)
    layout[:] = h5py.VirtualSource(behind, "data", DATA.shape)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("exchange/data", layout)
    with pytest.raises(SourceError, match=r"which is not there|were never written"):
        open_source(tmp_path / "virtual.h5")
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        raw = str(tmp_path / behind)
        file.create_dataset("exchange/data", DATA.shape, "u2", external=[(raw, 0, DATA.nbytes)])
    with pytest.raises(SourceError, match="which is no file"):
        open_source(tmp_path / "raw.h5", LoaderOptions(allow_missing_frames=True))


def test_a_pipe_as_a_scan_behind_a_link_or_among_tiffs_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("a.h5", "a.npy", "a.tif"):
        (tmp_path / name).symlink_to("pipe")
        with pytest.raises(SourceError, match="is neither a file nor a folder"):
            open_source(tmp_path / name)
    (tmp_path / "tiffs").mkdir()
    for i in range(3):
        tifffile.imwrite(tmp_path / "tiffs" / f"p_{i}.tif", DATA[i])
    (tmp_path / "tiffs" / "p_3.tif").symlink_to("../pipe")
    with pytest.raises(SourceError, match=r"p_3\.tif: is neither a file nor a folder"):
        open_source(tmp_path / "tiffs")


def test_links_in_a_circle(tmp_path):
    (tmp_path / "a.h5").symlink_to("b.h5")
    (tmp_path / "b.h5").symlink_to("a.h5")
    with pytest.raises(SourceError, match="Too many levels of symbolic links"):
        open_source(tmp_path / "a.h5")
    with pytest.raises(PipelineError, match="Too many levels of symbolic links"):
        Pipeline.from_file(tmp_path / "a.h5", fakes)
    with pytest.raises(MaxslicesError):
        run(DATA, Pipeline.from_steps(["to_float"], fakes), tmp_path / "a.h5", device="cpu")


def test_a_run_writes_to_its_folder_alone(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    scan = scans.write_dls(tmp_path / "scan.nxs", DATA)
    before = scan.read_bytes()
    run(scan, Pipeline.from_steps(["to_float"], fakes), tmp_path / "out", device="cpu")
    assert scan.read_bytes() == before
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == [
        "pipeline_as_run.yaml",
        "report.html",
        "report.json",
        "result.h5",
        "run.log",
        "scan.nxs",
        "timeline.json",
    ]


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_error_harms_nothing(tmp_path, closed):
    np.save(tmp_path / "scan.npy", DATA)
    (tmp_path / "p.yaml").write_text("- method: median_filter\n")
    command = f"{PROGRAM} run scan.npy p.yaml out --device cpu {closed}"
    assert subprocess.run(command, shell=True, cwd=tmp_path, timeout=120).returncode == 0
    assert (tmp_path / "out" / "report.json").exists()
    faulty = f"{PROGRAM} run none.npy p.yaml out2 {closed}"
    assert subprocess.run(faulty, shell=True, cwd=tmp_path, timeout=120).returncode == 1
    assert sorted(p.name for p in Path(tmp_path).iterdir()) == ["out", "p.yaml", "scan.npy"]
