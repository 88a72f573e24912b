"""Signals that stop a run, and the progress that a terminal shows."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

SLOW = """
import signal, sys, time
import numpy as np
from maxslices import from_ledger, registry
from maxslices.cli.main import main

# Whatever started the tests may have had these ignored, as nohup does.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

@from_ledger
def two(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)

def slow(data, pause: float = 0.0):
    time.sleep(pause)
    return np.negative(data)

registry.register(slow, name="slow", module="tests", pattern="all", calc_max_slices=two)
sys.exit(main())
"""


@pytest.fixture
def arguments(tmp_path):
    np.save(tmp_path / "scan.npy", np.ones((40, 6, 8), np.float32))
    (tmp_path / "p.yaml").write_text("- method: slow\n  parameters: {pause: 0.2}\n")
    paths = [str(tmp_path / name) for name in ("scan.npy", "p.yaml", "out")]
    return [sys.executable, "-c", SLOW, "run", *paths, "--device", "cpu", "--block", "1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_leaves_no_files(tmp_path, arguments, number):
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    part = tmp_path / "out" / ".result.h5.part"
    until = time.monotonic() + 20
    while not part.exists() and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)
    assert part.exists()
    assert not (tmp_path / "out" / "result.h5").exists()
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    said = b"maxslices: stopped; nothing unfinished was left behind\n"
    assert (process.returncode, err) == (130, said)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.yaml", "scan.npy"]


def test_a_killed_run_leaves_a_partial_file_alone(tmp_path, arguments):
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    part = tmp_path / "out" / ".result.h5.part"
    until = time.monotonic() + 20
    while not part.exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert [p.name for p in (tmp_path / "out").iterdir()] == [part.name]
    (tmp_path / "p.yaml").write_text("- method: slow\n")
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["report.json", "result.h5", "timeline.json"]


def on_terminal(command):
    """Run with a terminal as standard error; what was printed there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 0.1)
        if not ready and process.poll() is not None:
            break
        if ready:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # Linux says so where the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


def test_progress_is_shown_on_a_terminal_only(tmp_path, arguments):
    (tmp_path / "p.yaml").write_text("- method: slow\n  parameters: {pause: 0.03}\n")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_terminal(arguments))
    assert "section 1/1" in shown
    assert "40/40" in shown
    assert re.search(r"[\d.]+ slices/s", shown)
    assert re.search(r"\d:\d\d:\d\d", shown)
    done = subprocess.run([*arguments, "--overwrite"], capture_output=True, check=True)
    assert done.stderr == b""
