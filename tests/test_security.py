"""What SECURITY.md promises; links, reports and records in shared folders are in tests/runner."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile

from maxslices import Pipeline, run
from maxslices.errors import MaxslicesError, PipelineError, SourceError, StoreError
from maxslices.io import open_source, parse_loader
from maxslices.pipeline.yaml_values import parse_parameters
from tests.io import scans
from tests.planner.fakes import fakes

ROOT = Path(__file__).parents[1]
PROMISES = {
    "A pipeline file runs no code": "test_security::test_a_pipeline_runs_no_code_of_its_own",
    "Tags of Python objects are refused": "pipeline/test_pipeline_file::test_a_malformed_file",
    "`module_path` picks among": "test_security::test_a_module_path_imports_nothing",
    "Methods come from installed": "core/test_registry::test_entry_points_are_loaded_once",
    "Installing a package is trusting": "plugins/test_plugins::test_they_run_and_are_planned",
    "`maxslices nn ... MODULE:CALLABLE`": "nn/test_command::test_a_report_is_printed",
    "It is a command to run code": "test_security::test_no_file_names_code_to_run",
    "A plan (`--plan`) is numbers": "planner/test_plan_json::test_a_plan_for_something_else",
    "`-p NAME=VALUE` takes": "test_security::test_a_pipeline_runs_no_code_of_its_own",
    "A run reads the scan, and the flats": "test_security::test_flats_are_read_wherever",
    "An HDF5 file may point": "io/test_missing_frames::test_a_link_into_a_virtual_data_set",
    "They are read with the rights": "io/test_hdf5_faults::test_no_permission",
    "A pipe or a device behind": "test_security::test_what_is_no_file_is_not_opened",
    "Frames that were never written": "runner/test_silent_faults::test_scan_with_missing_frames",
    "A damaged file ends in one line": "fuzz/test_fuzz::test_attacks_find_nothing",
    "The size that a file declares": "io/test_tiff_and_npy_faults::test_a_page_that_cannot_be",
    "HDF5 2.0 itself reads": "io/test_hdf5_faults::test_hdf5_itself_hangs_on_a_global_heap",
    "A run writes to its folder": "test_security::test_a_run_writes_to_its_folder_and_to_records",
    "In a folder that others may": "runner/test_shared_folder::test_a_planted_link_is_not_followed",
    "`--overwrite` removes results": "runner/test_shared_folder::test_tampered_report",
    "A tampered journal removes": "runner/test_resume::test_foreign_files_are_never_moved",
    "Files that no run wrote stay": "test_security::test_files_that_no_run_wrote_stay",
    "A record with fewer bytes than": "runner/test_shared_folder::test_record_of_a_hundredth",
    "A record that is wrong by less": "estimate/test_model_resolver::test_a_run_corrects_a_record",
    "The processes of `--workers`": "workers/test_listeners::test_all_processes_listen_on",
    "They accept only connections": "workers/test_listeners::test_a_call_with_another",
    "They serve no web pages": "workers/test_listeners::test_no_process_serves_pages",
    "Workers of `--slurm` listen on": "workers/test_slurm::test_only_the_run_can_call",
    "Jobs read it from a folder that": "workers/test_slurm::test_only_the_run_can_call",
    "Workers of a run have a temporary": "workers/test_listeners::test_each_worker_has_a_folder",
    "It is removed when the run ends": "workers/test_listeners::test_the_folder_is_removed",
    "Workers of a cluster that already": "workers/test_two_hosts::test_two_hosts_equal",
}
"""Beginning of each sentence of SECURITY.md -> the beginning of the name of its test."""
DATA = scans.frames("uint16")
PROGRAM = f"{sys.executable} -m maxslices.cli.main"
CODE = ("object/apply:os.system [touch {}]", "name:os.system", "module:os")


def pipeline_of(text, path):
    path.write_text(text)
    return Pipeline.from_file(path, fakes)


def test_each_sentence_has_a_test():
    text = (ROOT / "SECURITY.md").read_text().split("\n## ", 1)[1]
    bullets = re.split(r"\n- ", text.replace("\n## ", "\n- ## "))[1:]
    tests = [
        sentence
        for bullet in bullets
        if not bullet.startswith("##")
        for sentence in re.split(r"(?<!\.\.)(?<=[.:]) (?=[A-Z`])", " ".join(bullet.split()))
    ]
    starts = list(PROMISES)
    assert [next((p for p in starts if each.startswith(p)), each) for each in tests] == starts


@pytest.mark.parametrize("test", sorted(set(PROMISES.values())))
def test_the_tests_of_the_sentences_are_there(test):
    file, name = test.split("::")
    if file.startswith("nn/") and not (ROOT / "tests" / "nn").exists():
        pytest.skip("networks are tested apart")
    assert re.search(rf"^ *def {name}", (ROOT / "tests" / f"{file}.py").read_text(), re.MULTILINE)


def test_no_file_names_code_to_run(tmp_path, monkeypatch):
    """What `maxslices nn` runs is named on its command line, and nowhere else."""
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    np.save(tmp_path / "scan.npy", DATA)
    for name in ("hostile:model", "hostile.model", "nn"):
        with pytest.raises(PipelineError):
            pipeline_of(f"- method: {name}\n", tmp_path / "p.yaml")
    (tmp_path / "plan.json").write_text('{"model": "hostile:model", "module": "hostile"}')
    command = f"{PROGRAM} run scan.npy p.yaml out --plan plan.json"
    done = subprocess.run(command, shell=True, cwd=tmp_path, timeout=120, capture_output=True)
    assert done.returncode != 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("code", CODE)
def test_a_pipeline_runs_no_code_of_its_own(tmp_path, code):
    value = "!!python/" + code.format(tmp_path / "ran")
    with pytest.raises(PipelineError, match="is not supported: use plain values"):
        pipeline_of(
            f"- method: to_float\n  parameters:\n    factor: {value}\n", tmp_path / "p.yaml"
        )
    with pytest.raises(MaxslicesError, match="is not supported: use plain values"):
        parse_parameters([f"factor={value}"])
    assert not (tmp_path / "ran").exists()


def test_a_module_path_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PipelineError):
        pipeline_of("- method: to_float\n  module_path: hostile\n", tmp_path / "p.yaml")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("behind", ["pipe", "/dev/zero", "folder"])
def test_what_is_no_file_is_not_opened(tmp_path, behind):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["exchange/data"] = h5py.ExternalLink(behind, "data")
    with pytest.raises(SourceError, match=r"is a link into .*, which is not a file"):
        open_source(tmp_path / "link.h5")
    layout = h5py.VirtualLayout(DATA.shape, DATA.dtype)
    layout[:] = h5py.VirtualSource(behind, "data", DATA.shape)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("exchange/data", layout)
    with pytest.raises(SourceError, match=r"which is missing|were never written"):
        open_source(tmp_path / "virtual.h5")
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        raw = str(tmp_path / behind)
        file.create_dataset("exchange/data", DATA.shape, "u2", external=[(raw, 0, DATA.nbytes)])
    with pytest.raises(SourceError, match="not a file"):
        open_source(tmp_path / "raw.h5")


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


def test_flats_are_read_wherever_the_pipeline_says(tmp_path):
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    scan = scans.write_npy(tmp_path / "here" / "scan.npy", DATA)
    scans.write_dls(tmp_path / "elsewhere" / "flats.h5", DATA)
    (tmp_path / "link.h5").symlink_to("elsewhere/flats.h5")
    for file in ("elsewhere/flats.h5", "link.h5"):
        given = {"flats": {"file": str(tmp_path / file), "data_path": "auto"}}
        with open_source(scan, parse_loader(given)[0]) as source:
            np.testing.assert_array_equal(source.read_side("flats", 0, 0, 1), DATA[scans.KEYS == 1])


def test_a_run_writes_to_its_folder_and_to_records(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    scan = scans.write_dls(tmp_path / "scan.nxs", DATA)
    before = scan.read_bytes()
    run(scan, Pipeline.from_steps(["to_float"], fakes), tmp_path / "out", device="cpu")
    assert scan.read_bytes() == before
    run(scan, Pipeline.from_steps(["to_float"], fakes), device="cpu", estimator="probed")
    written = {path.relative_to(tmp_path).parts for path in tmp_path.rglob("*") if path.is_file()}
    assert {parts for parts in written if parts[0] != "records"} == {
        ("out", "pipeline_as_run.yaml"),
        ("out", "report.html"),
        ("out", "report.json"),
        ("out", "result.h5"),
        ("out", "run.log"),
        ("scan.nxs",),
    }
    assert any(parts[0] == "records" for parts in written)


@pytest.mark.parametrize("name", ["report.html", "result.h5", "notes.txt"])
def test_files_that_no_run_wrote_stay(tmp_path, name):
    (tmp_path / name).write_text("mine")
    for overwrite in (False, True):
        with contextlib.suppress(StoreError):
            steps = Pipeline.from_steps(["to_float"], fakes)
            run(DATA, steps, tmp_path, device="cpu", overwrite=overwrite)
        assert (tmp_path / name).read_text() == "mine"


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
