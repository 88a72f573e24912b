"""Workers that a real SLURM starts on this machine."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest

from maxslices import run
from maxslices.errors import DeviceError, UsageError
from maxslices.workers import dealing, slurm_cluster
from maxslices.workers.slurm_cluster import job_settings, slurm_client
from tests.workers.faulty import check_as_alone, of_faulty
from tests.workers.listeners import can_call
from tests.workers.slurm_site import output_of, slurm_site, why_not

pytest.importorskip("dask_jobqueue", reason="pip install 'maxslices[dask]'")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A SLURM with two cores."""
    if reason := why_not():
        pytest.skip(reason)
    with slurm_site(tmp_path_factory.mktemp("slurm")) as site:
        yield site


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Have jobs write to a folder of their own, and find the methods of the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def pause(tmp_path):
    """File for whose end the method `waiting` waits."""
    path = tmp_path / "pause"
    path.touch()
    return path


def waiting(pause):
    return of_faulty("waiting", pause, at=14)


@contextmanager
def running(site, scan, pause, n_jobs, slurm=""):
    """A run in another thread, which has begun and ends after `pause` is removed."""
    errors = []

    def go():
        try:
            run(scan, waiting(pause), "out", workers=n_jobs, slurm=slurm, block=2)
        except DeviceError as error:
            errors.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    journal = Path("out/.run/journal")
    try:
        site.wait_for(lambda: journal.exists() and b'"done"' in journal.read_bytes())
        yield errors
    finally:
        pause.unlink(missing_ok=True)
        thread.join()


def test_cancelled_job_is_replaced_by_a_waiting_one(scan, pause, site):
    with running(site, scan, pause, 4) as errors:
        site.wait_for(lambda: len(site.jobs("RUNNING")) == 2)
        first, second = site.jobs("RUNNING")
        output_of("scancel", first)
        site.wait_for(lambda: len({second, *site.jobs("RUNNING")}) == 2)
    assert not errors
    check_as_alone(scan, waiting(pause), Path())
    site.wait_for(lambda: not site.jobs())


def test_run_resumes_after_the_time_limit_of_its_job(scan, pause, site, monkeypatch):
    monkeypatch.setattr(dealing, "NO_WORKER_S", 1.0)
    with running(site, scan, pause, 1, slurm="-t 10") as errors:
        (job,) = site.jobs("RUNNING")
        output_of("scontrol", "update", f"jobid={job}", "EndTime=now")
        site.wait_for(lambda: job in site.jobs("TIMEOUT"))
        site.wait_for(lambda: errors)
    assert "there has been no worker for 1 s" in str(errors[0])
    run(scan, waiting(pause), "out", workers=1, slurm="", resume=True)
    check_as_alone(scan, waiting(pause), Path())


def test_run_continues_without_the_controller(scan, pause, site):
    with running(site, scan, pause, 2) as errors:
        site.kill_controller()
    try:
        assert not errors
        check_as_alone(scan, waiting(pause), Path())
        with pytest.raises(DeviceError, match=r"rejects the jobs: .* contact slurm controller"):
            run(scan, ["minus_log"], "second", workers=1, slurm="")
    finally:
        site.start_controller()
    site.wait_for(lambda: not site.jobs())


def test_hanging_controller_does_not_block(scan, site, monkeypatch):
    monkeypatch.setattr(slurm_cluster, "ANSWER_S", 0.5)
    site.kill_controller(signal.SIGSTOP)
    try:
        with pytest.raises(DeviceError, match=r"sbatch did not answer in 0\.5 s"):
            run(scan, ["minus_log"], "out", workers=1, slurm="")
    finally:
        site.kill_controller(signal.SIGCONT)


def test_rejection_by_slurm_is_reported(scan, site):
    with pytest.raises(DeviceError, match=r"rejects the jobs: .* invalid partition specified"):
        run(scan, ["minus_log"], "out", workers=2, slurm="-p nothing")
    assert not Path("out").exists()


def test_reason_of_a_waiting_job_is_shown_and_ctrl_c_cancels_it(site, monkeypatch):
    monkeypatch.setattr(slurm_cluster, "LOOK_S", 0.5)

    def tell(text):
        if text == "still waiting for SLURM: PENDING (PartitionDown)":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), slurm_client("-p down", 1, None, tell):
        pass
    site.wait_for(lambda: not site.jobs())


def test_run_ends_when_all_jobs_have_ended(scan, site, monkeypatch):
    monkeypatch.setattr(slurm_cluster, "LOOK_S", 0.5)
    with (
        dask.config.set({"jobqueue.slurm.python": "/bin/false"}),
        pytest.raises(DeviceError, match="all jobs ended before a worker connected"),
    ):
        run(scan, ["minus_log"], "out", workers=1, slurm="")


def test_only_the_run_can_call_its_workers(site):
    with slurm_client("", 1, None, print) as client:
        info = client.scheduler_info(n_workers=-1)
        (folder,) = Path().glob(".maxslices-*")
        assert (folder / "key.pem").exists()
        assert not folder.stat().st_mode & 0o077
        for address in (info["address"], *info["workers"]):
            assert can_call(address, client.security)
            assert not can_call(address.replace("tls", "tcp"), None)
    assert not folder.exists()


def test_gpu_jobs_request_a_gpu():
    settings = job_settings("-p gpu", on_gpus=True)
    assert settings["job_extra_directives"] == ["--gres=gpu:1", "-p gpu"]
    assert settings["worker_extra_args"][-2:] == ["--resources", "GPU=1"]
    own = job_settings("--gpus=h200:1", on_gpus=True)
    assert own["job_extra_directives"] == ["--gpus=h200:1"]


def test_configuration_of_the_site_applies():
    site = {"cores": 8, "memory": "64GB", "job-extra-directives": ["--qos=short"]}
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in site.items()}):
        settings = job_settings("-p cpu", on_gpus=False)
    assert settings["job_extra_directives"] == ["--qos=short", "-p cpu"]
    assert "cores" not in settings
    assert "job_directives_skip" not in settings


def test_missing_slurm_is_reported(scan, monkeypatch):
    monkeypatch.setenv("PATH", os.getcwd())
    with pytest.raises(DeviceError, match="sbatch was not found"):
        run(scan, ["minus_log"], "out", workers=1, slurm="")


@pytest.mark.parametrize(
    "wrong", [{}, {"gpus": "all"}, {"workers": 1, "gpus": 1}, {"workers": 1, "engine": "dask"}]
)
def test_the_number_of_jobs_is_required(scan, wrong):
    with pytest.raises(UsageError, match=r"give the number of jobs|leave the engine out"):
        run(scan, ["minus_log"], "out", slurm="-p cpu", **wrong)
