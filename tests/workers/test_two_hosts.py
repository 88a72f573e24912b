"""Workers in two network namespaces, each with a host name of its own, as two machines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from maxslices import run
from tests.runner.resumable import content

PIPELINE = """
- method: standard_tomo
  parameters:
    rotation_angles: {user_defined: {start_angle: 0, stop_angle: 180, angles_total: 101}}
- method: dark_flat_field_correction
- method: minus_log
  save_result: true
- method: remove_stripe_ti
"""
ADDRESSES = {"one": "10.77.91.1", "two": "10.77.91.2"}


def name_of(host: str) -> str:
    return f"mxs-{os.getpid()}-{host}"


def on(host: str, *command: str) -> list[str]:
    """Command line on one of the hosts."""
    named = f'hostname {host}; exec "$0" "$@"'
    return ["ip", "netns", "exec", name_of(host), "unshare", "--uts", "sh", "-c", named, *command]


@pytest.fixture(scope="module")
def hosts():
    """Two namespaces with a link between them."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces are made by root, with the command ip")
    one, two = name_of("one"), name_of("two")
    ends = [f"mx{os.getpid()}{end}" for end in "ab"]
    steps = [
        ["netns", "add", one],
        ["netns", "add", two],
        f"link add {ends[0]} netns {one} type veth peer name {ends[1]} netns {two}".split(),
    ]
    for host, end in zip(("one", "two"), ends, strict=True):
        inside = ["-n", name_of(host)]
        steps += [
            [*inside, "addr", "add", f"{ADDRESSES[host]}/24", "dev", end],
            [*inside, "link", "set", end, "up"],
            [*inside, "link", "set", "lo", "up"],
        ]
    try:
        for step in steps:
            done = subprocess.run(["ip", *step], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
        yield
    finally:
        for name in (one, two):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.fixture
def cluster(hosts):
    """Address of a scheduler on the first host, and the worker's process on each."""
    address = f"tcp://{ADDRESSES['one']}:8786"
    python = [sys.executable, "-m"]
    options = ["--no-dashboard", "--host"]
    scheduler = [*python, "distributed.cli.dask_scheduler", "--port", "8786"]
    processes = [subprocess.Popen(on("one", *scheduler, *options, ADDRESSES["one"]))]
    worker = [*python, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    workers = {
        host: subprocess.Popen(on(host, *worker, "--memory-limit", "0", *options, ADDRESSES[host]))
        for host in ("one", "two")
    }
    processes += workers.values()
    wait = f"from distributed import Client; Client({address!r}).wait_for_workers(2, timeout=60)"
    subprocess.run(on("one", sys.executable, "-c", wait), check=True)
    yield address, workers
    for process in processes:
        process.kill()
        process.wait()


def started(address: str, scan: Path, pipeline: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "maxslices", "run", str(scan), str(pipeline), str(out)]
    options = ["--engine", f"dask:{address}", "--block", "1"]
    return subprocess.Popen(
        on("one", *command, *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_two_hosts_equal_one_process_also_if_one_fails(tmp_path, cluster):
    address, workers = cluster
    scan, pipeline = tmp_path / "scan.nxs", tmp_path / "pipeline.yaml"
    keys = np.array([1] * 3 + [2] * 3 + [0] * 101)
    with h5py.File(scan, "w") as file:
        data = np.random.default_rng(1).integers(100, 4000, (107, 40, 128), np.uint16)
        data[3:6] = 7
        file["entry1/tomo_entry/data/data"] = data
        file["entry1/tomo_entry/instrument/detector/image_key"] = keys
    pipeline.write_text(PIPELINE)
    run(scan, pipeline, tmp_path / "alone", device="cpu", block=1)
    alone = content(tmp_path / "alone")[0]
    for name in ("both", "left"):  # on one cluster, as its start takes longest
        out = tmp_path / name
        process = started(address, scan, pipeline, out)
        if name == "left":
            while not (out / ".run/journal").exists() and process.poll() is None:
                time.sleep(0.01)
            workers["two"].send_signal(signal.SIGKILL)
        text, _ = process.communicate()
        assert process.returncode == 0, text
        assert "2 workers on 2 hosts" in text
        report = json.loads((out / "report.json").read_text())
        notes = [note for section in report["sections"] for note in section["notes"]]
        assert any(" on one: " in note for note in notes)
        if name == "both":
            assert any(" on two: " in note for note in notes)
        assert len(report["sections"]) == 2
        assert content(out)[0] == {
            path.replace("alone", name): value for path, value in alone.items()
        }
