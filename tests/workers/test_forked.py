"""Workers are forked from a process that has imported the libraries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import dask
import pytest
from distributed.nanny import WorkerProcess

from maxslices import run
from maxslices.workers import local_cluster
from maxslices.workers.local_cluster import local_client
from tests.workers.faulty import check_as_alone, of_faulty

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")
NUMERIC = {
    name: os.environ.get(name) for name in dask.config.get("distributed.nanny.pre-spawn-environ")
}
"""Variables that Dask would set for workers, with their values before Dask starts."""


def test_workers_are_forked_from_one_process(client):
    parents = set(client.run(os.getppid).values())
    assert len(parents) == 1
    assert os.getpid() not in parents


def _signals_of_a_program() -> list[str]:
    words = ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"]
    return subprocess.run(words, capture_output=True, text=True).stdout.split()[1::2]


def test_programs_that_methods_start_can_be_interrupted(client):
    for masks in client.run(_signals_of_a_program).values():
        assert [int(mask, 16) & 1 << signal.SIGINT - 1 for mask in masks] == [0, 0]


def _environment() -> dict[str, str]:
    return {**os.environ}


def test_dask_does_not_change_the_threads_of_numpy(client):
    """With another number of threads, the last bit of a result may differ."""
    assert "OMP_NUM_THREADS" in NUMERIC
    for environment in (*client.run(_environment).values(), _environment()):
        assert {name: environment.get(name) for name in NUMERIC} == NUMERIC


def test_workers_get_the_current_environment(client, monkeypatch):
    monkeypatch.setenv("MAXSLICES_TEST", "later than the process that workers are forked of")
    with local_client(1, None) as other:
        values = other.run(os.getenv, "MAXSLICES_TEST")
    assert set(values.values()) == {"later than the process that workers are forked of"}


def test_each_worker_sees_one_of_the_gpus_that_the_command_sees(monkeypatch):
    monkeypatch.setattr(local_cluster, "count_devices", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "14,17,19")
    with local_client(None, 2) as other:
        assert sorted(other.run(os.getenv, "CUDA_VISIBLE_DEVICES").values()) == ["14", "17"]
        workers = other.scheduler_info()["workers"].values()
        assert [each["resources"] for each in workers] == [{"GPU": 1}] * 2


def test_run_survives_the_death_of_the_fork_server(tmp_path, scan):
    with local_client(2, None) as client:
        (server,) = set(client.run(os.getppid).values())
        os.kill(server, signal.SIGKILL)
        pipeline = of_faulty("failing", tmp_path)
        run(scan, pipeline, tmp_path / "out", engine=client, block=2)
    check_as_alone(scan, pipeline, tmp_path)


STOPPED = """
import signal, sys
from maxslices import run
from tests.workers.faulty import of_faulty

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        run("scan.npy", of_faulty("waiting", sys.argv[1], 20), "out", workers=2, block=1)
    except KeyboardInterrupt as stopped:
        print(stopped)
"""


def test_ctrl_c_between_blocks_ends_workers_silently(tmp_path, scan, program):
    pause, journal = tmp_path / "pause", tmp_path / "out" / ".run/journal"
    pause.touch()
    process = program(STOPPED, pause)
    while process.poll() is None and not (journal.exists() and b'"done"' in journal.read_bytes()):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    pause.unlink()
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert "of 23 projections are done" in output


ALONE = """
import os
from maxslices import Pipeline, Registry, run

methods = Registry()

def twice(data):
    return data * 2

methods.register(twice, pattern="projection", name="twice")

if __name__ == "__main__":
    run("scan.npy", Pipeline.from_steps(["twice"], methods), "out", workers=2, device="cpu")
    assert "PYTHONSAFEPATH" not in os.environ
"""


def test_temporary_folder_with_a_path_too_long_for_a_socket(tmp_path, scan, program):
    folder = tmp_path / ("a job's own folder " * 6).strip()
    folder.mkdir()
    _, errors = program(ALONE, TMPDIR=str(folder)).communicate()
    assert errors == ""
    assert (tmp_path / "out" / "report.json").exists()
    assert {path.name for path in folder.iterdir()} <= {"dask-scratch-space"}


def test_workers_ignore_modules_in_the_current_folder(tmp_path, scan, program):
    for name in ("numpy", "types", "maxslices"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the user')")
    _, errors = program(ALONE, path="programs/program.py").communicate()
    assert errors == ""
    assert (tmp_path / "out/result.h5").exists()


def test_worker_that_ends_slowly_causes_no_error(monkeypatch, capfd):
    ended = WorkerProcess.kill

    async def slow(*args, **kwargs):
        await ended(*args, **kwargs)
        raise TimeoutError

    monkeypatch.setattr(WorkerProcess, "kill", slow)
    with local_client(2, None) as other:
        assert other.submit(sum, (2, 3)).result() == 5
    assert capfd.readouterr().err == ""
