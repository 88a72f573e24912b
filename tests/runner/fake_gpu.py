"""A simulated device: its memory are NumPy arrays, and copies are made late.

A real device copies at some time between a call and the event after it. This one copies at the last
moment, when an event is awaited. Memory that is overwritten or freed too early, or read without
waiting, shows in the data or in `faults`. With a seed, another thread makes some copies earlier, at
random. With "eager", copies to the device are made at once.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np

POISON = 0xA5
"""Value of each byte of uninitialized or freed memory."""
JOIN_S = 60
"""Seconds after which a thread counts as stuck. Its copies take milliseconds."""


def _root(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class FakeEvent:
    """A point in a stream, reached when everything before it is done; see `DeviceEvent`."""

    def __init__(self, reach: Callable[[FakeEvent], None] | None = None) -> None:
        self._reach = reach
        self.at_s: float | None = time.perf_counter() if reach is None else None

    def synchronize(self) -> None:
        if self.at_s is None:
            assert self._reach is not None
            self._reach(self)
            assert self.at_s is not None

    def time_s(self) -> float:
        assert self.at_s is not None, "the time of an event that was not reached"
        return self.at_s


class FakeCopyEngine:
    """Two streams of copies. Computing is immediate. See `CopyEngine`."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._streams: dict[str, deque[Any]] = {"in": deque(), "out": deque()}

    def staging(self, n_bytes: int) -> np.ndarray:
        self._gpu.note("staging", n_bytes)
        return self._gpu.pinned((n_bytes,), np.uint8)

    def is_direct(self, array: np.ndarray) -> bool:
        return self._gpu.is_pinned(array)

    def buffer(self, n_bytes: int) -> np.ndarray:
        self._gpu.note("input buffer", n_bytes)
        array = self._gpu.device_memory((n_bytes,), np.uint8)
        self._gpu.buffers.append(weakref.ref(array))
        return array

    def record(self) -> FakeEvent:
        return FakeEvent()

    def wait(self, event: FakeEvent) -> None:
        event.synchronize()  # computing is immediate, so it must wait now
        if self._gpu.is_eager:
            time.sleep(5e-4)  # let the reader get as far as it may

    def send(
        self, host: np.ndarray, buffer: np.ndarray, after: FakeEvent
    ) -> tuple[FakeEvent, FakeEvent]:
        return self._copy("in", host, buffer, after)

    def fetch(
        self, data: np.ndarray, host: np.ndarray, after: FakeEvent
    ) -> tuple[FakeEvent, FakeEvent]:
        return self._copy("out", data, host, after)

    def _copy(
        self, name: str, source: np.ndarray, target: np.ndarray, after: FakeEvent
    ) -> tuple[FakeEvent, FakeEvent]:
        assert source.shape == target.shape
        assert source.dtype == target.dtype
        host = source if name == "in" else target
        assert self._gpu.is_pinned(host), "memory that the device cannot copy from by itself"
        stream = self._streams[name]

        def reach(event: FakeEvent) -> None:
            with self._gpu.lock:
                for _ in range(len(stream)):  # each step makes one of the pending copies
                    if event.at_s is None:
                        self._step(stream)
            assert event.at_s is not None, f"an event behind no copy {name}"

        begin, end = FakeEvent(reach), FakeEvent(reach)
        # The caller must keep the memory alive.
        ends = [(weakref.ref(_root(a)), _place(a)) for a in (source, target)]
        with self._gpu.lock:
            stream.append((after, begin, end, name, ends))
        if name == "in" and self._gpu.is_eager:
            end.synchronize()
        return begin, end

    def poke(self, rng: random.Random) -> None:
        """Make one of the pending copies."""
        with self._gpu.lock:
            waiting = [stream for stream in self._streams.values() if stream]
            if waiting:
                self._step(rng.choice(waiting))

    def _step(self, stream: deque[Any]) -> None:
        after, begin, end, name, ends = stream.popleft()
        after.synchronize()
        begin.at_s = time.perf_counter()
        roots = [ref() for ref, _ in ends]
        if any(root is None for root in roots):
            self._gpu.faults.append(f"a copy {name} of memory that was freed")
        else:
            source, target = (_at(*place) for _, place in ends)
            np.copyto(target, source)
        end.at_s = time.perf_counter()


def _place(array: np.ndarray) -> tuple[int, tuple[int, ...], tuple[int, ...], str]:
    return array.ctypes.data, array.shape, array.strides, array.dtype.str


class _At:
    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str
    ) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": dtype,
            "version": 3,
        }


def _at(*place: Any) -> np.ndarray:
    return np.asarray(_At(*place))


class FakeGpu:
    """A device of NumPy arrays; see `Backend`.

    Parameters
    ----------
    seed : int or "eager", optional
        Another thread makes some copies earlier. With "eager", copies to the device are made at
        once.
    fails_at : collection of int
        Numbers of the allocations that fail, from 0 on.
    """

    name, kind, reserved_bytes, modules_bytes = "cuda:0", "cuda", 0, 0

    def __init__(self, seed: int | Literal["eager"] | None = None, fails_at: Any = ()) -> None:
        self.lock = threading.RLock()
        self.events: list[str] = []
        self.faults: list[str] = []
        self.fails_at = fails_at
        self.allocated: list[str] = []
        self.sizes: list[tuple[str, int]] = []
        self.buffers: list[Any] = []
        self._pinned: dict[int, Any] = {}
        self._engine = FakeCopyEngine(self)
        self.is_eager = seed == "eager"
        self._rng = random.Random(seed) if isinstance(seed, int) else None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> FakeGpu:
        if self._rng is not None:
            self._thread = threading.Thread(target=self._poke, args=(self._rng,))
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=JOIN_S)
            assert not self._thread.is_alive(), "a copy that never ends"

    def _poke(self, rng: random.Random) -> None:
        while not self._stop.wait(rng.choice([0, 1e-4, 3e-4])):
            self._engine.poke(rng)

    def allocate(self, what: str) -> None:
        """Count an allocation, and fail if its number is in `fails_at`."""
        with self.lock:
            number = len(self.allocated)
            self.allocated.append(what)
        if number in self.fails_at:
            raise MemoryError(f"no memory for {what}, allocation {number}")

    def note(self, what: str, n_bytes: int) -> None:
        """Note the purpose and the size of an allocation."""
        with self.lock:
            self.sizes.append((what, n_bytes))

    def n_buffers(self) -> int:
        """Number of buffers for blocks."""
        return sum(buffer() is not None for buffer in self.buffers)

    def free_bytes(self) -> int:
        return 10**9

    def limited(self, budget_bytes: int) -> Any:
        self.events.append(f"limit {budget_bytes}")
        return nullcontext()

    def to_device(self, block: np.ndarray) -> np.ndarray:
        self.note("copy to the device", block.nbytes)
        self.allocate("a copy on the device")
        return block.copy()

    def to_host(self, block: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(block)

    def copy_engine(self) -> FakeCopyEngine:
        return self._engine

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        array = self.device_memory(shape, dtype)
        self.note("store on the device", array.nbytes)
        return array

    def device_memory(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.allocate("memory of the device")
        return _poisoned(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        array = self.pinned(shape, dtype)
        self.note("store on the host", array.nbytes)
        return array

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.allocate("pinned memory")
        array = _poisoned(shape, dtype)
        self.pin(array)
        return array

    def pin(self, array: np.ndarray) -> None:
        """Let the device copy from and to an array directly."""
        root = _root(array)
        self._pinned[id(root)] = weakref.ref(root)

    def is_pinned(self, array: np.ndarray) -> bool:
        root = _root(array)
        reference = self._pinned.get(id(root))
        return reference is not None and reference() is root

    def contiguous(self, block: np.ndarray) -> np.ndarray:
        if not block.flags.c_contiguous:
            self.note("contiguous copy", block.nbytes)
            self.allocate("a contiguous copy")
        return np.ascontiguousarray(block)

    def overlap(self, first: np.ndarray, second: np.ndarray) -> bool:
        return np.may_share_memory(first, second)

    def retain_freed(self, largest_bytes: int) -> None:
        self.events.append("retain freed")

    def forget_plans(self) -> None:
        self.events.append("forget plans")

    def release(self) -> None:
        self.events.append("release")


def _poisoned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = POISON
    return array
