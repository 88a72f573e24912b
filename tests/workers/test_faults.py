"""Workers that fail or are killed: the result is complete, or the run ends with the reason."""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import dask
import pytest
from distributed import Future

from maxslices import Pipeline, run
from maxslices.errors import DeviceError, MethodError
from maxslices.workers import worker_calls
from maxslices.workers.dealing import Dealer
from maxslices.workers.local_cluster import local_client
from maxslices.workers.worker_calls import WorkerCalls
from maxslices.workers.workers import opened_workers, wait_for_workers
from tests.workers.faulty import check_as_alone, faulty, of_faulty


@pytest.fixture(scope="module")
def client():
    """Workers that are killed here only."""
    with local_client(2, None) as local:
        yield local


@pytest.fixture
def due(tmp_path):
    """Function that makes a folder with a number of faults."""

    def make(count):
        folder = tmp_path / f"due{count}"
        folder.mkdir()
        for number in range(count):
            (folder / f"due-{number}").touch()
        return folder

    return make


@pytest.mark.parametrize(("name", "count"), [("killed", 1), ("killed", 2), ("failing", 2)])
def test_lost_share_is_repeated(tmp_path, scan, client, due, name, count):
    folder = due(count)
    pipeline = of_faulty(name, folder)
    run(scan, pipeline, tmp_path / "out", engine=client, block=2)
    assert list(folder.iterdir()) == []
    check_as_alone(scan, pipeline, tmp_path)


def test_share_that_fails_three_times_ends_the_run(tmp_path, scan, client, due):
    pipeline = of_faulty("failing", due(10), at=20)
    with pytest.raises(MethodError) as raised:
        run(scan, pipeline, tmp_path / "out", engine=client, block=2)
    text = str(raised.value)
    assert "failed 3 times, on tls://" in text
    assert "failing failed on projections 20 to 21: OSError: the table is away" in text
    assert len(list((tmp_path / "due10").iterdir())) == 7
    assert "resume with" in text
    for path in (tmp_path / "due10").iterdir():
        path.unlink()
    run(scan, pipeline, tmp_path / "out", engine=client, resume=True)
    check_as_alone(scan, pipeline, tmp_path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("locked", "raising failed on projections .*: LockedError: the lock is held"),
        ("two values", "raising failed on projections .*: TwoValuesError: 1 is not 2"),
        ("recursion", "raising failed on projections .*: RecursionError"),
        ("ctrl-c", "a method raised KeyboardInterrupt"),
    ],
)
def test_any_exception_of_a_method_is_named(tmp_path, scan, client, capfd, how, message):
    pipeline = Pipeline.from_steps([{"method": "raising", "parameters": {"how": how}}], faulty)
    workers = client.run(os.getpid)
    with pytest.raises(MethodError, match=rf"failed 3 times, on tls://.*{message}"):
        run(scan, pipeline, tmp_path / "out", engine=client, block=2)
    assert capfd.readouterr().err == ""
    assert client.run(os.getpid) == workers


PROGRAM = """
import sys
from maxslices import Pipeline, run
from tests.workers.faulty import check_as_alone, faulty, of_faulty

if __name__ == "__main__":
    loader = {"method": "standard_tomo", "parameters": {"rotation_angles": [1.0] * 23}}
    pipeline = Pipeline.from_steps([loader, "with_a_warning"], faulty)
    run(sys.argv[1], pipeline, sys.argv[2], device="cpu", engine="dask", workers=2, block=2)
"""


def test_warning_of_a_worker_is_one_line_and_never_repeated(tmp_path, scan, program):
    """In its own process, because workers keep the standard error of the first ones."""
    _, errors = program(PROGRAM, scan, tmp_path / "out").communicate(timeout=60)
    lines = errors.splitlines()
    assert [line for line in lines if "lamp" in line] == ["maxslices: warning: the lamp is weak"]
    assert len([line for line in lines if "all have the same angle" in line]) == 1


def test_methods_may_start_processes(tmp_path, scan, client):
    pipeline = Pipeline.from_steps(["with_processes"], faulty)
    run(scan, pipeline, tmp_path / "out", engine=client, block=2)


def locked(job, share):
    return threading.Lock()


def test_value_that_cannot_be_sent_is_an_error_of_the_method(client):
    with pytest.raises(MethodError, match=r"slice 3 failed 3 times.* cannot be sent: .*pickle"):
        Dealer(WorkerCalls(client), {}).once(locked, 1, range(3, 4))


def test_share_that_kills_each_worker_ends_the_run(tmp_path, scan, client, due):
    pipeline = of_faulty("killed", due(10), at=0)
    with pytest.raises(MethodError, match=r"projections 0 to \d+: each of 3 attempts failed"):
        run(scan, pipeline, tmp_path / "out", engine=client, block=2)
    assert len(list((tmp_path / "due10").iterdir())) == 10 - 3


def test_worker_that_ends_early_is_omitted(client):
    wait_for_workers(WorkerCalls(client), 2)
    address, pid = next(iter(client.run(os.getpid).items()))
    busy = client.submit(time.sleep, 600, workers=[address], pure=False)
    facts = []

    def describe():
        with opened_workers(client, Pipeline.from_steps(["minus_log"])) as workers:
            facts.extend(workers.facts)

    describing = threading.Thread(target=describe, daemon=True)
    describing.start()
    until_s = time.monotonic() + 60
    while len(client.processing().get(address, ())) < 2:  # no entry before its first task
        assert time.monotonic() < until_s
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    describing.join(60)
    assert facts
    assert address not in {each.address for each in facts}
    client.cancel([busy])
    wait_for_workers(WorkerCalls(client), 2)


def test_workers_that_end_during_import_end_the_run(tmp_path, scan, monkeypatch):
    (tmp_path / "ends_on_import.py").write_text(ENDS_ON_IMPORT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MAIN_PROCESS", str(os.getpid()))
    ends_on_import = importlib.import_module("ends_on_import")
    pipeline = Pipeline.from_steps(["thing"], ends_on_import.here)
    with pytest.raises(DeviceError, match="3 workers ended before they answered, the last one tls"):
        run(scan, pipeline, tmp_path / "out", device="cpu", workers=1)


ENDS_ON_IMPORT = """
import os, signal
from maxslices import Registry, method
here = Registry()
if os.environ["MAIN_PROCESS"] != str(os.getpid()):
    os.kill(os.getpid(), signal.SIGKILL)
@method("all", output_dtype="float32", registry=here)
def thing(data):
    return data.astype("float32")
"""


def test_hanging_worker_is_named_and_replaced(tmp_path, scan, due, monkeypatch):
    """The limits are seconds here."""
    folder = due(1)
    monkeypatch.setattr(worker_calls, "WARN_S", 1.0)
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": "6s"}),
        local_client(2, None) as client,
        pytest.warns(
            UserWarning, match=r"worker tls://.* has not answered for \d+ s: .*worker-ttl"
        ),
    ):
        run(scan, of_faulty("stopped", folder), tmp_path / "out", engine=client, block=2)
    assert list(folder.iterdir()) == []
    check_as_alone(scan, of_faulty("stopped", folder), tmp_path)


def test_ctrl_c_ends_a_run_whose_worker_hangs(tmp_path, scan, due, monkeypatch):
    folder = due(1)

    def interrupt(text, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_calls, "WARN_S", 1.0)
    monkeypatch.setattr(warnings, "warn", interrupt)
    with local_client(1, None) as client:
        pid = next(iter(client.run(os.getpid).values()))
        with pytest.raises(KeyboardInterrupt):
            run(scan, of_faulty("stopped", folder), tmp_path / "out", engine=client, block=2)
    assert not Path(f"/proc/{pid}").exists()


def test_late_result_is_awaited(client, monkeypatch):
    """A result that arrives after the time limit of a check is not an error of the worker."""

    def late(future, timeout=None):
        monkeypatch.undo()
        while not future.done():
            time.sleep(0.01)
        raise TimeoutError("timed out after 1 s.")

    with opened_workers(client, Pipeline.from_steps(["minus_log"])) as workers:
        monkeypatch.setattr(Future, "result", late)
        assert workers.submit(abs, -3) == 3


def out_of_time():
    raise TimeoutError("the detector does not answer")


def test_timeout_error_of_the_function_is_its_error(client):
    with (
        opened_workers(client, Pipeline.from_steps(["minus_log"])) as workers,
        pytest.raises(DeviceError, match="TimeoutError: the detector does not answer"),
    ):
        workers.submit(out_of_time)
