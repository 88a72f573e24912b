"""What torch allocates on the CPU, told to tracemalloc, which does not see it by itself.

torch's profiler reports every allocation of its CPU allocator with the time. From these comes
the most that a call had alive at once; tracemalloc is told of as much for a moment, so that its
peak is that of NumPy and torch together. The tensor that a call returns is told of until it is
freed. Work areas that oneDNN takes past torch's allocator are not seen.
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
"""Address, where nothing is, of what is alive for a moment only."""
_tracked: set[int] = set()


def counted(call: Callable[[], T]) -> T:
    """Call a function; where tracemalloc is at work, its peak rises by what torch had alive.

    What NumPy and torch had alive at most during the call is added up, as if at one time.
    """
    if not tracemalloc.is_tracing():
        return call()
    import torch

    autograd: Any = torch.autograd
    if autograd._profiler_enabled():  # the caller's own: there cannot be two
        return call()
    earlier_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    profile = _profile()
    result: T | None = None
    try:
        result = call()
    finally:
        profile.__exit__(None, None, None)
        during = tracemalloc.get_traced_memory()[1]
        highest = _highest(profile)  # makes objects that tracemalloc would count
        tracemalloc.reset_peak()
        _raise_peak(max(earlier_peak, during + highest))
    return result


def until_freed(tensor: Any) -> None:
    """Have the memory that torch has for a tensor counted until the tensor is gone."""
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


def _profile() -> Any:
    from torch.autograd.profiler import profile

    name = "KINETO_LOG_LEVEL"
    level = os.environ.get(name)
    os.environ[name] = level or "99"  # it writes a line whenever it starts
    try:
        started: Any = profile(profile_memory=True)
        return started.__enter__()
    finally:
        if level is None:
            del os.environ[name]


def _highest(profile: Any) -> int:
    """Return the most bytes alive at once of what was allocated under a profile."""
    events = [
        (event.start_ns(), event.nbytes())
        for event in profile.kineto_results.events()
        if event.name() == "[memory]"
    ]
    alive = np.cumsum([n_bytes for _, n_bytes in sorted(events, key=lambda event: event[0])])
    return int(max(0, alive.max(initial=0)))


def _raise_peak(n_bytes: int) -> None:
    """Have tracemalloc's peak be at least this."""
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
