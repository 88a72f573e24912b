"""Bytes in arrays right now."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..core.allocators import Device
from ..system.process_state import torch_on_gpu


def alive_bytes(device: Device) -> int:
    """Bytes in use in a GPU's pools; or in NumPy's arrays, 0 if tracemalloc is off."""
    if device == "cuda":
        import cupy

        torch, in_use = torch_on_gpu(), int(cupy.get_default_memory_pool().used_bytes())
        return in_use if torch is None else in_use + int(torch.cuda.memory_allocated())
    if not tracemalloc.is_tracing():
        return 0
    traces = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in traces if trace.domain == np.lib.tracemalloc_domain)


@contextmanager
def tracemalloc_on(device: Device) -> Iterator[None]:
    """Keep tracemalloc on between calls, which shows what each leaves on the CPU."""
    start = device == "cpu" and not tracemalloc.is_tracing()
    if start:
        tracemalloc.start(1)
    try:
        yield
    finally:
        if start:
            tracemalloc.stop()
