from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

import numpy as np
import pytest

from maxslices.errors import MaxslicesError
from maxslices.system import threads
from maxslices.system.threads import WorkThread, next_of, wait_for, wait_for_event


@pytest.fixture(autouse=True)
def four(monkeypatch):
    monkeypatch.setattr(threads, "N_THREADS", 4)


@pytest.mark.parametrize("n_items", [0, 1, 2, 3, 100])
def test_each_item_is_processed_once(n_items):
    done = []
    threads.parallel_for(n_items, done.append)
    assert sorted(done) == list(range(n_items))


def test_single_thread_is_the_caller(monkeypatch):
    monkeypatch.setattr(threads, "N_THREADS", 1)
    seen = set()
    threads.parallel_for(10, lambda i: seen.add(threading.get_ident()))
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("where", ["helper", "caller"])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_error_is_raised_after_all_calls_have_ended(where, error):
    caller, under_way, begun = threading.get_ident(), [], []
    together = threading.Barrier(4, timeout=10)

    def work(i: int) -> None:
        begun.append(i)
        under_way.append(i)
        if i < 4:
            together.wait()
        mine = (threading.get_ident() == caller) == (where == "caller")
        try:
            if mine:
                raise error
            time.sleep(0.05)
        finally:
            under_way.remove(i)

    with pytest.raises(type(error)) as raised:
        threads.parallel_for(1000, work)
    assert raised.value is error
    assert under_way == []
    assert len(begun) < 20


def test_caller_works_alone_if_no_thread_can_be_started():
    run(
        'def refuse(thread): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = refuse\n"
        "done = []\n"
        "threads.parallel_for(100, done.append)\n"
        "assert done == list(range(100))\n"
    )


def test_nested_loops_do_not_deadlock():
    done = []

    def loops() -> None:
        threads.parallel_for(30, lambda i: threads.parallel_for(30, done.append))

    caller = threading.Thread(target=loops, daemon=True)
    caller.start()
    caller.join(60)
    assert len(done) == 900


def run(code: str) -> None:
    head = (
        "from maxslices.system import threads\nthreads.N_THREADS = 4\nimport time, os, threading\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_forked_process_has_threads_of_its_own():
    run(
        "threads.parallel_for(8, lambda i: time.sleep(0.01))\n"
        "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
        "child = os.fork()\n"
        "barrier = threading.Barrier(4, timeout=10)\n"
        "threads.parallel_for(4, lambda i: barrier.wait())\n"
        "if child: assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )


def test_loop_at_the_end_of_the_process_completes():
    run(
        "threads.parallel_for(8, lambda i: time.sleep(0.01))\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    done = []\n"
        "    threads.parallel_for(8, done.append)\n"
        "    assert len(done) == 8\n"
        "threading.Thread(target=late).start()\n"
    )


@pytest.mark.parametrize("cores", [1, 2])
def test_cores_are_those_of_the_process(cores):
    if len(os.sched_getaffinity(0)) < cores:
        pytest.skip(f"needs {cores} cores")
    code = (
        f"import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])\n"
        "from maxslices.system import threads\n"
        f"assert (threads.N_CORES, threads.N_THREADS, threads.N_DECODERS) == ({cores}, 1, 1)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert ended.returncode == 0


@pytest.mark.parametrize("shape", [(7, 5, 3), (1, 50, 3), (100, 1, 1), (0, 5, 3), (30,)])
def test_a_copy_in_parts(monkeypatch, shape):
    monkeypatch.setattr(threads, "_PART_BYTES", (16, 32))
    data = np.arange(np.prod(shape), dtype=">u2").reshape(shape)
    out = np.empty(shape, "u2")
    threads.parallel_copy(out, data)
    np.testing.assert_array_equal(out, data)


@pytest.mark.parametrize("n_frames", [1, 3, 57, 114, 228])
def test_threads_get_equal_parts(monkeypatch, n_frames):
    monkeypatch.setattr(threads, "N_THREADS", 10)
    monkeypatch.setattr(threads, "_PART_BYTES", (2**10, 2**14))
    array = np.empty((n_frames, 512, 5), np.uint8)
    sizes, lock = [], threading.Lock()

    def work(frames, rows, part):
        with lock:
            sizes.append(part.nbytes)

    threads.parallel_for_box((0, n_frames), (0, 512), array, work)
    assert sum(sizes) == array.nbytes
    rounds = -(-len(sizes) // 10)
    assert rounds * max(sizes) <= 1.3 * array.nbytes / min(10, len(sizes))


def test_work_runs_once_and_is_awaited():
    may_end, done = threading.Event(), []
    thread = WorkThread(lambda: (may_end.wait(10), done.append(1)), "test")
    assert not thread.is_alive
    thread.start()
    assert thread.is_alive
    may_end.set()
    thread.join(60)
    assert done == [1]
    assert not thread.is_alive


def fail():
    raise MemoryError("in the thread")


def test_error_of_the_work_is_raised_once_by_join():
    thread = WorkThread(fail, "test")
    thread.start()
    with pytest.raises(MemoryError, match="in the thread"):
        thread.join(60)
    thread.join(60)


def test_wait_for_a_failed_thread_raises_its_error():
    thread = WorkThread(fail, "test")
    thread.start()
    wait_for_event(threading.Event(), thread, 60)
    with pytest.raises(MemoryError, match="in the thread"):
        next_of(SimpleQueue(), thread, 60)


def test_a_thread_that_ends_before_its_first_line_is_not_waited_for(monkeypatch):
    """Where Python has no memory for the first lines, it drops the function that was to run."""
    monkeypatch.setattr("_thread.start_new_thread", lambda function, args: None)
    thread = WorkThread(time.sleep, "reader")
    thread.start()
    assert not thread.is_alive
    thread.join(limit_s=3600)
    with pytest.raises(RuntimeError, match=threads.NO_THREAD):
        next_of(SimpleQueue(), thread, limit_s=3600)


def test_wait_ends_at_its_limit():
    with pytest.raises(MaxslicesError, match="the copying thread has not answered for 0 ms"):
        wait_for(lambda timeout_s: None, lambda: True, 0.0, "copying")


def test_hanging_thread_is_awaited_only_once():
    end = threading.Event()
    thread = WorkThread(lambda: end.wait(60), "reader")
    thread.start()
    with pytest.raises(MaxslicesError, match="the reader thread"):
        thread.join(0.01)
    assert not thread.is_alive
    thread.join(60)
    end.set()
