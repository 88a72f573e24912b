"""Folders in which other users may write: their links are not followed, and their files stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from maxslices import Pipeline, Registry, plan, run
from maxslices.core.block_memory import PYTHON_BYTES
from maxslices.errors import EstimatorError, StoreError
from maxslices.estimate import Records
from maxslices.estimate.peak_model import PeakModel
from maxslices.estimate.probe import one_array
from maxslices.runner.folder.journal import Journal
from maxslices.system.cache_dir import FOLDER_VARIABLE
from maxslices.system.plain_records import from_plain, to_plain
from tests.estimate.record_cases import HERE, PROBE, asked
from tests.planner.fakes import fakes

DATA = np.arange(6 * 5 * 4, dtype=np.uint16).reshape(6, 5, 4)
PIPELINE = Pipeline.from_steps(["to_float"], fakes)


@pytest.fixture
def victim(tmp_path):
    """A file that other users cannot write to."""
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


LINKS = {"symbolic": os.symlink, "hard": os.link}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    "name", [".run", ".run/journal", ".run/run.log", ".run/result.h5", "report.json"]
)
def test_a_planted_link_is_not_followed(tmp_path, victim, link, name):
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    LINKS[link](victim, out / name)
    if name in ("report.json", ".run", ".run/journal"):
        with pytest.raises(StoreError):
            run(DATA, PIPELINE, out, device="cpu", overwrite=True)
        return
    run(DATA, PIPELINE, out, device="cpu")
    assert json.loads((out / "report.json").read_text())["device"] == "cpu"


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        (".run/result.h5", {"block": 2}),
        (".run/section-1.000.scratch", {"memory": PYTHON_BYTES + 12_000}),
    ],
)
def test_a_link_planted_in_an_unfinished_run_is_not_followed(
    tmp_path, victim, monkeypatch, link, name, options
):
    scan, out = tmp_path / "scan.npy", tmp_path / "out"
    np.save(scan, np.arange(9 * 7 * 16, dtype=np.uint16).reshape(9, 7, 16))
    pipeline = Pipeline.from_steps(["to_float", "work", "negate"], fakes)
    original = Journal.done

    def stop(self, section, *args):
        original(self, section, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "done", stop)
        with pytest.raises(KeyboardInterrupt):
            run(scan, pipeline, out, device="cpu", **options)
    (out / name).unlink(missing_ok=True)
    LINKS[link](victim, out / name)
    with pytest.raises(StoreError):
        run(scan, pipeline, out, device="cpu", resume=True)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        (
            ".run/journal",
            "--overwrite",
            "is not a file, so it is not the journal of a run",
        ),
        (".run/journal", "--resume", "is not a file, so it is not the journal of a run"),
        ("report.json", "--overwrite", "is not a readable report"),
    ],
)
def test_planted_pipe_does_not_block(tmp_path, name, option, message):
    """In its own process, which would hang otherwise."""
    np.save(tmp_path / "scan.npy", DATA)
    (tmp_path / "pipeline.yaml").write_text("- method: minus_log\n")
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    os.mkfifo(out / name)
    paths = [str(tmp_path / each) for each in ("scan.npy", "pipeline.yaml", "out")]
    command = [sys.executable, "-m", "maxslices", "run", *paths, "--device", "cpu", option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_hard_linked_journal_is_not_changed(tmp_path):
    journal, other = tmp_path / "journal", tmp_path / "other"
    Journal.create(journal, {"journal": 2}).close()
    content = journal.read_bytes()
    os.link(journal, other)
    with pytest.raises(StoreError, match="is a hard link"):
        Journal(journal, 0)
    assert other.read_bytes() == content


@pytest.mark.parametrize("link", LINKS)
def test_planted_link_at_a_record_is_not_followed(tmp_path, victim, link):
    records = Records(tmp_path / "records")
    records.add(asked(), HERE, PROBE)
    (path,) = records.folder.iterdir()
    path.unlink()
    LINKS[link](victim, path)
    records.add(asked(), HERE, PROBE)
    assert records.find(asked(), HERE).probe == PROBE


def test_report_is_readable_by_all(tmp_path):
    before = os.umask(0o022)
    try:
        run(DATA, PIPELINE, tmp_path / "out", device="cpu")
    finally:
        os.umask(before)
    assert (tmp_path / "out" / "report.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "entry", ["notes.txt", "../notes.txt", "..", ".", "scan.h5", "/etc/passwd"]
)
def test_tampered_report_removes_no_foreign_files(tmp_path, entry):
    out = tmp_path / "out"
    run(DATA, PIPELINE, out, device="cpu")
    for path in (out / "notes.txt", tmp_path / "notes.txt", out / "scan.h5"):
        path.write_text("precious")
    report = json.loads((out / "report.json").read_text())
    report["files"].append(entry)
    (out / "report.json").write_text(json.dumps(report))
    with pytest.raises(StoreError, match="runs do not write"):
        run(DATA, PIPELINE, out, device="cpu", overwrite=True)
    assert (out / "result.h5").exists()
    for path in (out / "notes.txt", tmp_path / "notes.txt", out / "scan.h5"):
        assert path.read_text() == "precious"


@pytest.mark.parametrize("out", ["loop", "loop/out", "far/out"])
def test_folder_behind_a_dangling_link_is_rejected(tmp_path, out):
    os.symlink("loop", tmp_path / "loop")
    os.symlink("nowhere", tmp_path / "far")
    with pytest.raises(StoreError, match=r"is a link to .*choose another folder for the results"):
        run(DATA, PIPELINE, tmp_path / out, device="cpu")


def doubled(data):
    return data.astype(np.float32) * 2


def test_record_of_a_hundredth_of_the_memory_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "records"))
    registry = Registry()
    registry.register(doubled, pattern="projection")
    pipeline = Pipeline.from_steps(["doubled"], registry)
    scan = np.zeros((90, 256, 256), np.uint16)
    plan(scan, pipeline, device="cpu", memory="100MB")
    (path,) = (tmp_path / "records").glob("*.json")
    content = json.loads(path.read_text())
    probe = content["entries"][0]["probe"]
    peaks = from_plain(PeakModel, probe["peaks"], "peaks")
    seen = [one_array(n_slices, peaks.bytes(n_slices) // 100) for n_slices in (1, 2, 4)]
    probe["peaks"] = to_plain(PeakModel.fit(seen, 1))
    path.write_text(json.dumps(content))
    with pytest.raises(EstimatorError, match=r"doubled: its record has .* alone take .*: measure"):
        plan(scan, pipeline, device="cpu", memory="100MB")
