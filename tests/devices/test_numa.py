"""Workers next to their GPU, by a made-up folder of the kernel's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from maxslices.devices import cuda
from maxslices.workers import worker
from tests.devices.fake_cupy import install

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="cores are chosen on Linux alone"
)


@pytest.fixture
def bound(monkeypatch, tmp_path):
    """Run on made-up cores near a made-up GPU; the cores that each thread is bound to."""

    def run(listed, given):
        cupy = install(monkeypatch)
        cupy.cuda.runtime.deviceGetPCIBusId = lambda number: f"0000:{0x1A + number:02X}:00.0"
        monkeypatch.setattr(cuda, "PCI_DEVICES", tmp_path)
        if listed is not None:
            (tmp_path / "0000:1a:00.0").mkdir()
            (tmp_path / "0000:1a:00.0" / "local_cpulist").write_text(listed)
        found = {}
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(given))
        monkeypatch.setattr(os, "sched_setaffinity", found.__setitem__)
        worker.device_of("cuda")
        return found

    return run


@pytest.mark.parametrize(
    ("listed", "given", "expected"),
    [
        ("0-2,7-8\n", range(12), {0, 1, 2, 7, 8}),
        ("5\n", range(12), {5}),
        ("0-5\n", range(3, 12), {3, 4, 5}),  # some of the node's cores are another job's
    ],
)
def test_a_worker_stays_on_the_cores_of_its_gpus_node(bound, listed, given, expected):
    waits, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (waits.set(), ended.wait()))
    thread.start()
    waits.wait()
    found = bound(listed, given)
    ended.set()
    assert {os.getpid(), thread.native_id} <= found.keys()
    assert all(cores == expected for cores in found.values())


@pytest.mark.parametrize(
    ("listed", "given"),
    [
        ("0-11\n", range(12)),  # one node, or the GPU's is not known: its numa_node is -1 then
        ("0-11\n", range(4)),
        ("0-3\n", range(4, 8)),  # given to it on another node
        ("\n", range(4)),
        (None, range(4)),
    ],
)
def test_a_worker_keeps_the_cores_that_it_was_given(bound, listed, given):
    assert bound(listed, given) == {}


def test_all_threads_of_a_process_are_bound(tmp_path):
    (tmp_path / "0000:1b:00.0").mkdir()
    last = max(os.sched_getaffinity(0))
    (tmp_path / "0000:1b:00.0" / "local_cpulist").write_text(f"{last}-{last}\n")
    code = f"""
import os, sys, threading
from pathlib import Path
from types import SimpleNamespace
runtime = SimpleNamespace(deviceGetPCIBusId=lambda number: "0000:1B:00.0")
sys.modules["cupy"] = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
from maxslices.devices import cuda
ended = threading.Event()
thread = threading.Thread(target=ended.wait)
thread.start()
cuda.PCI_DEVICES = Path({str(tmp_path)!r})
tasks = [*cuda._TASKS.iterdir(), Path("/proc/self/task/4194305")]  # that has ended meanwhile
cuda._TASKS = SimpleNamespace(iterdir=lambda: tasks)
cuda.stay_near(0)
later = []
own = threading.Thread(target=lambda: later.append(os.sched_getaffinity(0)))
own.start()
own.join()
print(os.sched_getaffinity(0), os.sched_getaffinity(thread.native_id), *later)
ended.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{{{last}}}"] * 3
