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

import h5py
import numpy as np
import pytest

from maxslices import run
from maxslices.system.threads import WorkThread

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
    (tmp_path / "p.yaml").write_text("- method: slow\n  parameters: {pause: 0.06}\n")
    paths = [str(tmp_path / name) for name in ("scan.npy", "p.yaml", "out")]
    return [sys.executable, "-c", SLOW, "run", *paths, "--device", "cpu", "--block", "1"]


def began(tmp_path, arguments):
    """Start a run, and wait until blocks of it are done."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    journal = tmp_path / "out" / ".run/journal"
    until = time.monotonic() + 120
    while not (journal.exists() and journal.read_text().count('"done"') > 1):
        assert time.monotonic() < until
        time.sleep(0.02)
    return process


DROPPED = """
class Frees:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # the handler's exception is raised here, and Python drops it
        (time.sleep(0), time.sleep(0))

def slow(data, pause: float = 0.0):
    Frees()
    time.sleep(pause)
    return np.negative(data)
"""


def test_a_stop_that_python_drops_comes_again(tmp_path, arguments):
    arguments[2] = SLOW.replace("registry.register(", DROPPED + "\nregistry.register(")
    arguments[2] = arguments[2].replace("import signal,", "import os, signal,")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert re.fullmatch("maxslices: stopped; .*\n", done.stderr)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_says_how_to_go_on_and_does(tmp_path, arguments, number):
    process = began(tmp_path, arguments)
    process.send_signal(number)
    process.send_signal(number)  # does not stop what the first one began
    _, err = process.communicate(timeout=120)
    scan, pipeline, out = arguments[4:7]
    assert re.fullmatch(
        r"maxslices: stopped; finished slices are kept \(section 1 of 1, \d+ of 40 projections are "
        rf"done\): resume with `maxslices run {scan} {pipeline} {out} --resume`\n",
        err.decode(),
    )
    assert process.returncode == 130
    assert names(tmp_path / "out") == [".run"]
    assert names(tmp_path / "out" / ".run") == ["journal", "result.h5", "run.log"]
    done = subprocess.run([*arguments[:7], "--resume"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\d+ of \d+ projections were done before", done.stdout)
    assert names(tmp_path / "out") == [
        "pipeline_as_run.yaml",
        "report.html",
        "report.json",
        "result.h5",
        "run.log",
    ]
    with h5py.File(tmp_path / "out" / "result.h5") as file:
        assert (file["entry/data/data"][()] == -1).all()


def test_a_run_that_is_stopped_before_its_first_block_leaves_no_files(tmp_path, arguments):
    (tmp_path / "p.yaml").write_text("- method: slow\n  parameters: {pause: 2}\n")
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    part = tmp_path / "out" / ".run" / "result.h5"
    until = time.monotonic() + 120
    while not part.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    message = b"maxslices: stopped; nothing unfinished was left behind\n"
    assert (process.returncode, err) == (130, message)
    assert names(tmp_path) == ["p.yaml", "scan.npy"]


def test_a_folder_with_a_killed_run_names_both_commands_and_goes_on(tmp_path, arguments):
    steps = (tmp_path / "p.yaml").read_text()
    process = began(tmp_path, arguments)
    process.kill()
    process.communicate()
    assert names(tmp_path / "out") == [".run"]
    assert names(tmp_path / "out" / ".run") == ["journal", "result.h5"]
    again = subprocess.run(arguments, capture_output=True, text=True)
    scan, pipeline, out = arguments[4:7]
    command = f"maxslices run {scan} {pipeline} {out}"
    assert again.returncode == 1
    assert (
        f"resume it with `{command} --resume`, or start anew with `{command} --ov" in again.stderr
    )
    (tmp_path / "p.yaml").write_text("- method: slow\n")
    refused = subprocess.run([*arguments[:7], "--resume"], capture_output=True, text=True)
    assert refused.returncode == 3
    assert "pause" in refused.stderr
    assert "start anew with --overwrite" in refused.stderr
    (tmp_path / "p.yaml").write_text(steps)
    subprocess.run([*arguments[:7], "--resume"], check=True, stdout=subprocess.DEVNULL)
    assert names(tmp_path / "out") == [
        "pipeline_as_run.yaml",
        "report.html",
        "report.json",
        "result.h5",
        "run.log",
    ]


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
    assert " of 40 slices" in shown
    assert re.search(r"[\d.]+ slices/s", shown)
    done = subprocess.run([*arguments, "--overwrite"], capture_output=True, check=True)
    assert done.stderr == b""


@pytest.mark.parametrize("name", ["reader", "writer"])
def test_ctrl_c_while_a_thread_is_started_ends_a_run_as_any_other(tmp_path, name, monkeypatch):
    original = WorkThread.start

    def start(thread):
        if thread.name == name:
            raise KeyboardInterrupt  # as a signal between two instructions of it
        original(thread)

    np.save(tmp_path / "scan.npy", np.ones((40, 6, 8), np.float32))
    monkeypatch.setattr(WorkThread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "scan.npy", ["minus_log"], tmp_path / "out", device="cpu", block=4)
    assert names(tmp_path) == ["scan.npy"]


@pytest.mark.parametrize(
    "program",
    [["-m", "maxslices"], ["-c", "import sys; from maxslices.__main__ import main; main()"]],
)
def test_ctrl_c_while_the_program_is_imported_prints_no_traceback(tmp_path, program):
    (tmp_path / "click.py").write_text("import time; print('here', flush=True); time.sleep(60)")
    paths = [str(tmp_path), *sys.path]
    with subprocess.Popen(
        [sys.executable, *program, "info"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # nohup has it ignored
    ) as process:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGINT, "")
