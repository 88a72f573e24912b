"""torch's memory on the CPU, reported to tracemalloc.

torch's profiler records every allocation of its CPU allocator with the time, which gives the peak
of a call. The peak is reported to tracemalloc for a moment, so tracemalloc's peak includes both
NumPy and torch. The tensor that a call returns counts until it is freed. Workspaces that
oneDNN allocates outside torch's allocator are not counted.
"""

from __future__ import annotations

import ctypes
import os
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
_MOMENTARY_ADDRESS = 1
"""Address of momentary reports, which no allocation has."""
_tracked: set[int] = set()


def counted(call: Callable[[], T]) -> T:
    """Call a function and add torch's peak to tracemalloc's, if it is tracing.

    The peaks of NumPy and torch during the call are added, as if they occurred at the same time.
    """
    if not tracemalloc.is_tracing():
        return call()
    import torch

    autograd: Any = torch.autograd
    if autograd._profiler_enabled():  # the caller's own profiler, because torch allows only one
        return call()
    earlier_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    profile = start_profile()
    result: T | None = None
    try:
        result = call()
    finally:
        profile.__exit__(None, None, None)
        during = tracemalloc.get_traced_memory()[1]
        highest = _highest(profile)  # tracemalloc would count its objects
        tracemalloc.reset_peak()
        _raise_peak(max(earlier_peak, during + highest))
    return result


def until_freed(tensor: Any) -> None:
    """Count a tensor's storage until the tensor is gone."""
    storage = tensor.untyped_storage()
    address, n_bytes = int(storage.data_ptr()), int(storage.nbytes())
    if not tracemalloc.is_tracing() or not n_bytes or address in _tracked:
        return
    _tracked.add(address)
    _track(address, n_bytes)
    weakref.finalize(tensor, _forget, address)


def _forget(address: int) -> None:
    _tracked.discard(address)
    _untrack(address)


def start_profile() -> Any:
    """Start torch's profiler with memory. Its `__exit__` stops it."""
    from torch.autograd.profiler import profile

    name = "KINETO_LOG_LEVEL"
    level = os.environ.get(name)
    os.environ[name] = level or "99"  # without it, a line is printed at every start
    try:
        started: Any = profile(profile_memory=True)
        return started.__enter__()
    finally:
        if level is None:
            del os.environ[name]


def _highest(profile: Any) -> int:
    """Most bytes alive at once of the allocations in a profile."""
    events = [
        (event.start_ns(), event.nbytes())
        for event in profile.kineto_results.events()
        if event.name() == "[memory]"
    ]
    alive = np.cumsum([n_bytes for _, n_bytes in sorted(events, key=lambda event: event[0])])
    return int(max(0, alive.max(initial=0)))


def _raise_peak(n_bytes: int) -> None:
    """Raise tracemalloc's peak to at least this."""
    missing = n_bytes - tracemalloc.get_traced_memory()[0]
    if missing > 0:
        _track(_MOMENTARY_ADDRESS, missing)
        _untrack(_MOMENTARY_ADDRESS)


def _track(address: int, n_bytes: int) -> None:
    domain = ctypes.c_uint(np.lib.tracemalloc_domain)
    ctypes.pythonapi.PyTraceMalloc_Track(domain, ctypes.c_size_t(address), ctypes.c_size_t(n_bytes))


def _untrack(address: int) -> None:
    domain = ctypes.c_uint(np.lib.tracemalloc_domain)
    ctypes.pythonapi.PyTraceMalloc_Untrack(domain, ctypes.c_size_t(address))
