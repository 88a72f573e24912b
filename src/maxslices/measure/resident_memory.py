"""Resident memory of processes, by the kernel's count, on Linux only.

It includes arrays, memory of C libraries, and code. It counts pages in RAM, so an array that was
never written to does not count.

The kernel keeps one maximum for each process (``VmHWM``), which overlapping measurements share.
Before one of them resets it, all of them record the maximum so far.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from weakref import WeakSet

_lock = Lock()
_active: WeakSet[ResidentPeak] = WeakSet()


class ResidentPeak:
    """Peak of this process's resident memory from now on, as counted by the kernel."""

    def __init__(self) -> None:
        self.before_bytes: int | None = None
        """Resident bytes at the start, or None if the kernel does not report them."""
        self._highest_bytes = 0
        with _lock:
            _observe()
            try:
                Path("/proc/self/clear_refs").write_text("5")  # resets the maximum
            except OSError:
                return
            now_bytes = _counted("VmRSS")
            if now_bytes is not None:
                self.before_bytes = self._highest_bytes = now_bytes
                _active.add(self)

    @property
    def highest_bytes(self) -> int | None:
        """Most resident bytes so far, or None if the kernel does not report them."""
        if self.before_bytes is None:
            return None
        with _lock:
            _observe()
        return self._highest_bytes

    @property
    def grown_bytes(self) -> int | None:
        """Largest growth of resident bytes since the start, or None if unknown."""
        highest_bytes = self.highest_bytes
        if highest_bytes is None or self.before_bytes is None:
            return None
        return highest_bytes - self.before_bytes


def _observe() -> None:
    """Record the kernel's maximum for every measurement."""
    highest_bytes = _counted("VmHWM")
    for meter in list(_active):
        meter._highest_bytes = max(meter._highest_bytes, highest_bytes or 0)


def _counted(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux
        return None
    values = [line for line in lines if line.startswith(f"{name}:")]
    return int(values[0].split()[1]) * 1024 if values else None
