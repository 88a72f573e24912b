"""Memory that torch's caching allocator hands out and holds on the current CUDA device.

torch keeps one set of maxima per device, which overlapping measurements share. Before one of them
resets these, all of them record the maxima so far.
"""

from __future__ import annotations

from threading import RLock
from typing import Any

from ..system.process_state import torch_on_gpu

_KINDS = ("allocated_bytes", "reserved_bytes")
_lock = RLock()
_active: list[TorchMeter] = []


class TorchMeter:
    """Bytes allocated and reserved, of all threads.

    Allocated is the growth over the memory alive at the start, so freeing an earlier tensor lowers
    it. Code that resets torch's maxima is noticed only if the sampling thread read a larger value
    than the maxima.
    """

    def __init__(self) -> None:
        self.before: dict[str, int] = dict.fromkeys(_KINDS, 0)
        self.highest: dict[str, int] = dict.fromkeys(_KINDS, 0)
        self.allocated_bytes: int | None = None
        self.unseen: list[str] = []
        self._sampled = self.reserved_after = 0
        self._index: int | None = None

    def start(self) -> None:
        """Start counting. A torch that has not used the device is ignored."""
        with _lock:
            torch = torch_on_gpu()
            if torch is not None:
                observe(torch)
                self._index = torch.cuda.current_device()
                for kind, (current, _) in _stats(torch).items():
                    self.before[kind] = self.highest[kind] = current
            _active.append(self)

    def stop(self) -> None:
        """Stop counting. `allocated_bytes` is None if torch was not used on the device."""
        with _lock:
            torch = torch_on_gpu()
            if torch is not None:
                observe(torch)
                grown = self.highest["allocated_bytes"] - self.before["allocated_bytes"]
                self.allocated_bytes = max(0, grown)
                self.reserved_after = _stats(torch)["reserved_bytes"][0]
                if self._sampled > self.highest["allocated_bytes"]:
                    self.unseen.append("the code reset torch's peak statistics")
            _active.remove(self)

    def sample(self) -> None:
        """Read the allocated bytes, from the sampling thread."""
        torch = torch_on_gpu()
        if torch is not None:
            self._sampled = max(self._sampled, int(torch.cuda.memory_allocated(self._index)))


def observe(torch: Any) -> None:
    """Record the maxima so far for every measurement, and reset them."""
    stats = _stats(torch)
    for meter in _active:
        for kind, (_, peak) in stats.items():
            meter.highest[kind] = max(meter.highest[kind], peak)
    torch.cuda.reset_peak_memory_stats()


def _stats(torch: Any) -> dict[str, tuple[int, int]]:
    """Bytes now and at most, by kind."""
    # torch's flat dictionary takes ten times as long as the nested one.
    stats = torch.cuda.memory_stats_as_nested_dict()
    figures = {}
    for kind in _KINDS:
        of_all = stats[kind]["all"]
        figures[kind] = of_all["current"], of_all["peak"]
    return figures
