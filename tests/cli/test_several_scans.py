"""Several scans in one command: patterns, a faulty scan, a stop, and resuming."""

from __future__ import annotations

import json
import os
import shutil

import h5py
import numpy as np
import pytest

from maxslices import run, run_scans
from maxslices.api.several_scans import find_scans
from maxslices.errors import DeviceError, StoreError, UsageError

STEPS = ("method: dark_flat_field_correction", "method: minus_log")


@pytest.fixture
def scans(tmp_path, scan):
    """Folder of five scans. The third is truncated, and the fourth has fewer rows."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for number in range(5):
        copy = folder / f"s{number}.nxs"
        copy.write_bytes(scan.read_bytes())
        with h5py.File(copy, "r+") as file:
            frames = file["entry1/tomo_entry/data/data"]
            frames[-1] += number
            if number == 3:
                fewer = frames[:, :8]
                del file["entry1/tomo_entry/data/data"]
                file["entry1/tomo_entry/data/data"] = fewer
    os.truncate(folder / "s2.nxs", scan.stat().st_size // 2)
    return folder


def result(folder):
    with h5py.File(folder / "result.h5") as file:
        return file["entry/data/data"][...]


def test_other_scans_run_if_one_is_faulty(cli, scans, pipeline, tmp_path):
    steps, out = pipeline(*STEPS), tmp_path / "out"
    status, text, err = cli("run", scans / "*.nxs", steps, "--output-dir", out, "--device", "cpu")
    assert status == 1
    assert sorted(os.listdir(out)) == ["s0", "s1", "s3", "s4"]
    last = err.splitlines()[-2:]
    assert last[0] == "maxslices: error: 5 scans: 4 done, 1 failed"
    assert last[1].startswith(f"  {scans / 's2.nxs'} failed: cannot be opened as HDF5")
    for number in (0, 1, 3, 4):
        run(scans / f"s{number}.nxs", steps, tmp_path / f"alone{number}", device="cpu")
        assert np.array_equal(result(out / f"s{number}"), result(tmp_path / f"alone{number}"))
    assert text.count("Plan for") == 4


def test_resume_runs_the_missing_scans(cli, scans, scan, pipeline, tmp_path):
    steps, out = pipeline(*STEPS), tmp_path / "out"
    command = ("run", scans / "*.nxs", steps, "--output-dir", out, "--device", "cpu", "-q")
    cli(*command)
    written = (out / "s0" / "result.h5").stat().st_mtime_ns
    (scans / "s2.nxs").write_bytes(scan.read_bytes())
    status, _, err = cli(*command)
    assert status == 1
    assert "s0 already contains a run" in err
    assert "--resume runs what is missing" in err
    assert not (out / "s2").exists()
    status, text, err = cli(*command, "--resume", "--json")
    assert (status, err) == (0, "")
    states = [each["state"] for each in json.loads(text)["scans"]]
    assert states == ["done before", "done before", "done", "done before", "done before"]
    assert (out / "s0" / "result.h5").stat().st_mtime_ns == written


def test_stopped_scan_resumes_with_its_plan(scans, pipeline, tmp_path, monkeypatch):
    steps, out = pipeline(*STEPS), tmp_path / "out"
    options = {"device": "cpu", "memory": "1GB", "block": 5}
    from maxslices.runner.blocks.block_runner import BlockRunner

    run_block, blocks = BlockRunner.run, []

    def stopped(self, *args, **kwargs):
        blocks.append(1)
        if len(blocks) == 10:  # the fourth of six blocks of the second scan
            raise KeyboardInterrupt
        return run_block(self, *args, **kwargs)

    monkeypatch.setattr(BlockRunner, "run", stopped)
    with pytest.raises(KeyboardInterrupt) as caught:
        run_scans(scans / "*.nxs", steps, out, **options)
    assert "1 of 5 scans are done; it was at" in str(caught.value)
    assert (out / "s1" / ".run/journal").exists()
    monkeypatch.undo()
    report = run_scans(scans / "*.nxs", steps, out, resume=True, **options)
    states = [each.state for each in report.scans]
    assert states == ["done before", "done", "failed", "done", "done"]
    notes = json.loads((out / "s1" / "report.json").read_text())["sections"][0]["notes"]
    assert any("projections were done before" in note for note in notes)
    run(scans / "s1.nxs", steps, tmp_path / "alone", **options)
    assert np.array_equal(result(out / "s1"), result(tmp_path / "alone"))


def test_errors_of_all_scans_are_found_before_the_first(cli, scans, pipeline, tmp_path):
    out = tmp_path / "out"
    for wrong in ("method: minus_log\n  parameters: {wrong: 1}", "method: nothing_like_it"):
        assert cli("run", scans / "*.nxs", pipeline(wrong), "--output-dir", out)[0] != 0
    good = pipeline(*STEPS)
    for options in (("--resume", "--overwrite"), ("--format", "jpeg"), ("--engine", "mpi")):
        assert cli("run", scans / "*.nxs", good, "--output-dir", out, *options)[0] == 2
    assert not out.exists()


def test_resume_rejects_a_finished_run_of_another_pipeline(cli, scan, pipeline, tmp_path):
    out = tmp_path / "out"
    run_scans(scan, pipeline(*STEPS), out, device="cpu")
    other = pipeline(STEPS[0], name="other.yaml")
    status, _, err = cli("run", scan, other, "--output-dir", out, "--resume", "-q")
    assert status == 1
    assert "has a finished run of another pipeline" in err


def test_resume_rejects_a_finished_run_of_other_data(cli, scan, pipeline, tmp_path):
    names = [tmp_path / "one" / "s.nxs", tmp_path / "two" / "s.nxs"]
    for name in names:
        name.parent.mkdir()
        name.write_bytes(scan.read_bytes())
    arguments = (pipeline(*STEPS), "--output-dir", tmp_path / "out", "--device", "cpu", "-q")
    assert cli("run", names[0], *arguments)[0] == 0
    status, _, err = cli("run", names[1], *arguments, "--resume")
    assert status == 1
    assert f"finished run of other data (it read {names[0]}, and {names[1]} is another file)" in err
    shutil.copystat(names[0], names[1])  # a copy with the same date is the same scan
    assert cli("run", names[1], *arguments, "--resume")[0] == 0
    os.utime(names[0], ns=(0, 10**18))
    status, _, err = cli("run", names[0], *arguments, "--resume")
    assert f"finished run of other data ({names[0]} has changed (time" in err
    names[0].unlink()
    status, _, err = cli("run", names[0], *arguments, "--resume")
    assert (status, "cannot be read (No such file or directory)" in err) == (1, True)


def test_resume_rejects_a_finished_run_with_results_in_another_format(
    cli, scan, pipeline, tmp_path
):
    command = ("run", scan, pipeline(*STEPS), "--output-dir", tmp_path, "--device", "cpu", "-q")
    assert cli(*command, "--format", "tiff")[0] == 0
    assert cli(*command, "--format", "tiff", "--resume")[0] == 0
    status, _, err = cli(*command, "--resume")
    assert (status, "a finished run with results in tiff, not hdf5: choose" in err) == (1, True)


def test_sweeps_of_several_scans_are_done_once(scan, pipeline, tmp_path):
    for factor, state in (("1.0", "done"), ("1.0", "done before"), ("2.0", "failed")):
        sweep = f"{{method: remove_outlier, parameters: {{dif: !Sweep [{factor}, 3.0]}}}}"
        done = run_scans(scan, pipeline(sweep), tmp_path / "out", device="cpu", resume=True)
        assert [each.state for each in done.scans] == [state]


def test_lost_device_ends_all_scans(scans, pipeline, tmp_path, monkeypatch):
    def lost(request):
        raise DeviceError("the scheduler was lost")

    monkeypatch.setattr("maxslices.api.several_scans.run_requested", lost)
    with pytest.raises(DeviceError, match=r"lost; 0 of 5 scans are done; it was at .*s0\.nxs"):
        run_scans(scans / "*.nxs", pipeline(*STEPS), tmp_path / "out")


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("a.nxs", "b.nxs", "p.yaml"), "for several scans use --output-dir"),
        (("*.nxs", "p.yaml"), "is a pattern: for several scans use --output-dir"),
        (("p.yaml", "--output-dir", "out"), "missing argument 'PIPELINE'"),
        (("no*.nxs", "p.yaml", "--output-dir", "out"), "no scan matches no*.nxs"),
        (("a.nxs", "p.yaml", "--output-dir", ""), "the folder for the results has no name"),
        (("a.nxs",), "missing argument 'PIPELINE'"),
    ],
)
def test_wrong_command_lines(cli, tmp_path, monkeypatch, paths, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text("- method: minus_log")
    status, _, err = cli("run", *paths)
    assert status == 2
    assert message in err


def test_names_of_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a/scan.nxs", "b/scan.nxs", "b/other.h5", "b/other.nxs", "b/[1].nxs"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def names(*scans):
        return [folder.name for folder in find_scans(scans, tmp_path / "out").values()]

    assert names("a/scan.nxs", "b/other.h5") == ["scan", "other"]
    assert names("b/other.h5", "b/other.nxs") == ["other.h5", "other.nxs"]
    assert names("b/other.h5", "b/other.nxs", "b/scan.nxs") == ["other.h5", "other.nxs", "scan"]
    assert names("*/scan.nxs") == ["a-scan.nxs", "b-scan.nxs"]
    assert names("b/[1].nxs") == ["[1]"]  # a file of this name exists
    assert names("b/o*", "b/other.nxs") == ["other.h5", "other.nxs"]
    (tmp_path / "link.nxs").symlink_to("b/scan.nxs")
    assert names("b/scan.nxs", tmp_path / "b/scan.nxs", "b/../link.nxs") == ["scan"]
    (tmp_path / "out").mkdir()
    assert "out" not in names("*")
    with pytest.raises(UsageError, match="no scan is named"):
        find_scans([], tmp_path)


def test_folders_are_checked_before_the_first_scan(scans, pipeline, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "s4").write_text("a file")
    with pytest.raises(StoreError, match="s4"):
        run_scans(scans / "*.nxs", pipeline(*STEPS), tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["s4"]
