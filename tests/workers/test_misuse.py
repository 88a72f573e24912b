"""Requests that workers cannot fulfil are rejected before anything starts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from multiprocessing import forkserver

import numpy as np
import pytest
from distributed import Client, LocalCluster

from maxslices import run
from maxslices.cli.main import main
from maxslices.errors import DeviceError, PlanError, UsageError
from maxslices.planner import Plan
from tests.runner.resumable import of

STEPS = ["negate", "work"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "mpi"}, "unknown engine 'mpi': use local, dask or dask:ADDRESS"),
        ({"scan": np.zeros((3, 4, 5), np.uint16)}, "give its path, not an array"),
        ({"out": None}, "name a folder"),
        ({"engine": "dask:127.0.0.1:1", "workers": 2}, "need a cluster on this machine"),
        ({"engine": "dask:"}, "dask:: missing port number .* write dask:tcp://HOST:PORT"),
        ({"engine": "dask:node1"}, "missing port number in address 'node1'"),
        ({"engine": "dask:far://node1:8786"}, "unknown address scheme 'far'"),
        ({"engine": "dask:tcp://node1:87860"}, "there is no port 87860"),
        ({"engine": "dask:tls://node1:8786"}, "no certificates are configured"),
        ({"workers": 0}, "0 workers were requested: at least one"),
        ({"workers": 10**6}, "1000000 idle workers take 28.* TB, and .* one for each core"),
        ({"workers": 1, "gpus": 1}, "give the number of processes"),
        ({"gpus": 10**6}, r"gpus is 1000000, and this machine has \d+: use 1 or more of these"),
    ],
)
def test_invalid_request_is_rejected(tmp_path, scan, change, message):
    arguments = {"engine": "dask", "scan": scan, "out": tmp_path / "out", **change}
    with pytest.raises((UsageError, DeviceError), match=message):
        run(arguments.pop("scan"), of(STEPS), arguments.pop("out"), **arguments)
    assert not (tmp_path / "out").exists()


def test_without_dask_the_error_says_how_to_install_it(tmp_path, scan, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'maxslices\[dask\]'"):
        run(scan, of(STEPS), tmp_path / "out", workers=2)


def test_invalid_dask_configuration_is_named(tmp_path, scan):
    (tmp_path / "dask.yaml").write_text("distributed: [1\n")
    (tmp_path / "pipeline.yaml").write_text("- method: minus_log\n")
    command = ["run", scan, tmp_path / "pipeline.yaml", tmp_path / "out", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "maxslices", *map(str, command)],
        env={**os.environ, "DASK_CONFIG": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Dask does not start" in done.stderr
    assert str(tmp_path / "dask.yaml") in done.stderr
    assert not (tmp_path / "out").exists()


def test_plan_with_data_in_memory_is_rejected(tmp_path, scan, client):
    plan = run(scan, of(STEPS), tmp_path / "alone", device="cpu").plan
    assert plan.sections[0].destination == "memory"
    with pytest.raises(PlanError, match="keeps the output of section 1 in memory of one process"):
        run(scan, of(STEPS), tmp_path / "out", plan=plan, engine=client)
    assert not (tmp_path / "out").exists()


def test_plan_for_another_scan_is_rejected(tmp_path, scan, client):
    plan = run(scan, of(STEPS), tmp_path / "out", engine=client).plan
    np.save(tmp_path / "other.npy", np.zeros((9, 17, 64), np.uint16))
    with pytest.raises(PlanError, match="made for something else"):
        run(
            tmp_path / "other.npy",
            of(STEPS),
            tmp_path / "other",
            plan=Plan.from_json(plan.to_json()),
            engine=client,
        )


def test_workers_with_several_threads_are_rejected(tmp_path, scan):
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
        pytest.raises(DeviceError, match=r"has 2 threads.*--nthreads 1"),
    ):
        run(scan, of(STEPS), tmp_path / "out", engine=client)


def test_a_scheduler_that_does_not_answer(capsys, scan, tmp_path):
    (tmp_path / "pipeline.yaml").write_text("- method: minus_log")
    names = [str(scan), str(tmp_path / "pipeline.yaml"), str(tmp_path / "out")]
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert main(["run", *names, "--engine", "dask:tcp://127.0.0.1:9"]) == 1
    assert "no scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err


def test_workers_need_an_existing_current_folder(tmp_path, scan, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="the current folder does not exist"):
        run(scan, of(STEPS), tmp_path / "out", workers=2)


def test_workers_need_a_program_in_a_file(tmp_path, scan, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    with pytest.raises(UsageError, match=r"not in a file \(python -\): write it to a file"):
        run(scan, of(STEPS), tmp_path / "out", workers=2)


def test_workers_that_cannot_be_started(tmp_path, scan, monkeypatch):
    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(forkserver, "connect_to_new_process", fail)
    with pytest.raises(DeviceError, match=r"2 workers cannot .* Too many .*ulimit -n"):
        run(scan, of(STEPS), tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()
