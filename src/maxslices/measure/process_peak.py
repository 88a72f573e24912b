"""What a process takes by the kernel's count."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


class ProcessPeak:
    """Growth of the process's resident memory from here on, at its highest.

    The kernel keeps the highest value itself (``VmHWM``), so no moment is missed. Beside arrays it
    counts what C libraries allocate and what is loaded of them meanwhile.
    """

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the highest value
        self._start_bytes = _resident("VmRSS")
        self._before_bytes = _resident("VmHWM")

    @property
    def grown_bytes(self) -> int | None:
        """Bytes beyond those at the start, at the highest; None where the kernel does not say."""
        highest = _resident("VmHWM")
        if highest is None or self._start_bytes is None or self._before_bytes is None:
            return None
        is_reset = self._before_bytes <= self._start_bytes * 1.01
        if not is_reset and highest == self._before_bytes:
            return None  # what was there before hides it
        return max(0, highest - self._start_bytes)


def held_bytes(process: int | None = None) -> int:
    """Memory of a process now, of what it shares with others its part; 0 if it is not known.

    Parameters
    ----------
    process : int, optional
        Its number; by default the one that asks.
    """
    return _counted("smaps_rollup", "Pss", process) or 0


def _resident(name: str) -> int | None:
    return _counted("status", name)


def _counted(file: str, name: str, process: int | None = None) -> int | None:
    try:
        lines = Path("/proc", str(process or "self"), file).read_text().splitlines()
    except OSError:  # not Linux
        return None
    found = [line for line in lines if line.startswith(f"{name}:")]
    return int(found[0].split()[1]) * 1024 if found else None
