"""The scheduler of a cluster ends during a run: finished slices are kept, and the run resumes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import dask
import pytest
from distributed import Client

from maxslices import run
from maxslices.errors import DeviceError
from maxslices.workers.worker_calls import WorkerCalls
from maxslices.workers.workers import wait_for_workers
from tests.runner.resumable import content
from tests.workers.faulty import of_faulty


@pytest.fixture
def cluster():
    """Address and process of a scheduler that has two workers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    python, options = [sys.executable, "-m"], ["--no-dashboard", "--host", "127.0.0.1"]
    port = ["--port", address.rpartition(":")[2]]
    scheduler = subprocess.Popen([*python, "distributed.cli.dask_scheduler", *port, *options])
    worker = [*python, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    workers = [subprocess.Popen([*worker, "--memory-limit", "0", *options]) for _ in range(2)]
    with Client(address, set_as_default=False) as client:
        wait_for_workers(WorkerCalls(client), 2)
    yield address, scheduler
    for process in (scheduler, *workers):
        process.kill()
        process.wait()


def test_run_resumes_after_the_scheduler_ended(tmp_path, scan, cluster):
    address, scheduler = cluster
    out, pause = tmp_path / "out", tmp_path / "pause"
    pause.touch()
    pipeline = of_faulty("waiting", pause, at=20)  # not in the first share

    def end_scheduler():
        while (
            not (out / ".run/journal").exists()
            or b'"done"' not in (out / ".run/journal").read_bytes()
        ):
            time.sleep(0.01)
        scheduler.kill()

    killing = threading.Thread(target=end_scheduler, daemon=True)
    killing.start()
    # A client tries for as long to reach its scheduler again; by default 30 s.
    soon = dask.config.set({"distributed.comm.timeouts.connect": "10s"})
    with (
        soon,
        pytest.raises(DeviceError, match=r"the scheduler was lost.*resume with `maxslices run"),
    ):
        run(scan, pipeline, out, engine=f"dask:{address}", block=1)
    killing.join()
    pause.unlink()
    run(scan, pipeline, out, resume=True, device="cpu")
    run(scan, pipeline, tmp_path / "alone", device="cpu", block=1)
    assert content(out) == content(tmp_path / "alone")
