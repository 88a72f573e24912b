"""What torch's caching allocator hands out and holds on the current CUDA device.

torch keeps one set of maxima per device. Measurements that overlap share it: each folds
the maxima so far into the others before it starts them anew.
"""

from __future__ import annotations

import sys
from threading import RLock
from typing import Any

_KINDS = ("allocated_bytes", "requested_bytes", "reserved_bytes")
_lock = RLock()
_active: list[TorchMeter] = []


class TorchMeter:
    """Bytes allocated, requested and reserved, of all threads.

    Allocated and requested are the growth over what was alive at the start: a tensor from
    before that the code frees makes them smaller. Code that resets torch's maxima itself is
    noticed by the sampling thread at best.
    """

    def __init__(self) -> None:
        self.before: dict[str, int] = dict.fromkeys(_KINDS, 0)
        self.highest: dict[str, int] = dict.fromkeys(_KINDS, 0)
        self.figures: dict[str, int] | None = None
        self.unseen: list[str] = []
        self._sampled = 0
        self._index: int | None = None

    def start(self) -> None:
        """Begin to count; nothing is asked of a torch that has not touched the device."""
        with _lock:
            torch = _torch()
            if torch is not None:
                observe(torch)
                self._index = torch.cuda.current_device()
                stats = torch.cuda.memory_stats()
                for kind in _KINDS:
                    self.before[kind] = self.highest[kind] = stats[f"{kind}.all.current"]
            _active.append(self)

    def stop(self) -> None:
        """End; `figures` stays None if torch was not used on the device."""
        with _lock:
            torch = _torch()
            if torch is not None:
                observe(torch)
                # What is reserved but free at the start can be handed out, as in CuPy's pool.
                base = self.before | {"reserved_bytes": self.before["allocated_bytes"]}
                self.figures = {kind: max(0, self.highest[kind] - base[kind]) for kind in _KINDS}
                if self._sampled > self.highest["allocated_bytes"]:
                    self.unseen.append("the code reset torch's peak statistics")
            _active.remove(self)

    def sample(self) -> None:
        """Read what is allocated now, from the sampling thread."""
        torch = _torch()
        if torch is not None:
            self._sampled = max(self._sampled, int(torch.cuda.memory_allocated(self._index)))


def observe(torch: Any) -> None:
    """Tell every measurement the maxima so far, and start them anew."""
    stats = torch.cuda.memory_stats()
    for meter in _active:
        for kind in _KINDS:
            meter.highest[kind] = max(meter.highest[kind], stats[f"{kind}.all.peak"])
    torch.cuda.reset_peak_memory_stats()


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return torch
