"""Threads that die as they begin, or while others wait for them."""

from __future__ import annotations

import _thread
import os
import shutil
import subprocess
import sys
import threading
from queue import SimpleQueue

import pytest

from maxslices.errors import MaxslicesError
from maxslices.system.threads import NO_THREAD, WorkThread, next_of, wait_for, wait_for_event

from .refuse_memory import build

DIES = """
import ctypes, sys
from maxslices.system.threads import NO_THREAD, WorkThread
refuse = ctypes.CDLL(None).refuse
refuse.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_size_t]
done = []
thread = WorkThread(lambda: done.append(1), "test")
refuse(1, 2**40, 2**14)  # a thread asks for so much at its first call
try:
    thread.start()
except RuntimeError as error:
    said = str(error)
finally:
    refuse(1, 0, 2**14)
assert said == NO_THREAD
thread.join(60)
assert not thread.is_alive and not done
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_thread_that_finds_no_memory_for_its_first_call_is_an_error(tmp_path):
    """With `threading.Thread` in its place this waits for ever."""
    environment = {**os.environ, "LD_PRELOAD": str(build(tmp_path))}
    ended = subprocess.run(
        [sys.executable, "-c", DIES], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def no_thread_begins(monkeypatch):
    """Threads end before they call what they were started for."""
    start = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", lambda _, args: start(lambda *_: None, args))


@pytest.mark.usefixtures("no_thread_begins")
def test_a_thread_that_never_began_is_not_waited_for():
    thread = WorkThread(int, "test")
    thread.join(60)
    with pytest.raises(RuntimeError, match=NO_THREAD):
        thread.start()
    thread.join(60)
    assert not thread.is_alive


def test_work_is_done_once_and_waited_for():
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


def test_an_error_of_the_work_is_raised_once_where_it_is_waited_for():
    thread = WorkThread(fail, "test")
    thread.start()
    with pytest.raises(MemoryError, match="in the thread"):
        thread.join(60)
    thread.join(60)


def test_who_waits_for_a_thread_that_broke_off_is_told():
    thread = WorkThread(fail, "test")
    thread.start()
    wait_for_event(threading.Event(), thread, 60)
    with pytest.raises(MemoryError, match="in the thread"):
        next_of(SimpleQueue(), thread, 60)


def test_an_item_that_came_before_the_thread_ended_is_taken():
    queue: SimpleQueue[int] = SimpleQueue()
    thread = WorkThread(lambda: queue.put(5), "test")
    thread.start()
    while thread.is_alive:
        pass
    assert next_of(queue, thread, 60) == 5


def test_a_wait_ends_by_its_limit():
    with pytest.raises(MaxslicesError, match="the copying thread has not answered for 0 ms"):
        wait_for(lambda timeout_s: None, lambda: True, 0.0, "copying")


def test_a_thread_that_was_waited_for_in_vain_is_not_waited_for_again():
    end = threading.Event()
    thread = WorkThread(lambda: end.wait(60), "reader")
    thread.start()
    with pytest.raises(MaxslicesError, match="the reader thread"):
        thread.join(0.01)
    assert not thread.is_alive
    thread.join(60)
    end.set()
