"""Methods whose memory no meter sees, and that fail in many ways; run in another process."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

import numpy as np

from maxslices import Registry, method

failing = Registry()
SLICE_BYTES = 2**20


@method("projection", registry=failing)
def unseen(data, per_slice: int = SLICE_BYTES):
    """Map memory, which tracemalloc does not see, for as long as the call lasts."""
    with mmap.mmap(-1, per_slice * len(data)):
        print("on standard output")
        return data


@method("projection", registry=failing)
def fails(data, how: str, above: int, wait_s: float = 0.0):
    """Fail in one way above a number of slices."""
    if len(data) <= above:
        return data
    if how == "memory":
        raise MemoryError("no memory")
    if how == "torch":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if how == "value":
        raise ValueError("the array is wrong")
    if how == "segfault":
        ctypes.string_at(0)
    if how == "bad_alloc":
        os.write(2, b"terminate called after throwing an instance\n  what():  std::bad_alloc\n")
        os.abort()
    if how == "astra":
        os.write(2, b"Error: astraCUDA: CUDA error 2: out of memory.\n")
    if how == "exit":
        os._exit(3)
    if how == "hang":
        time.sleep(60)
    if how == "kill":
        os.kill(os.getpid(), 9)
    return data


@method("sinogram", registry=failing)
def steps(data, flats, darks, angles):
    """Need side data, and a hundred times the input from 23 slices on."""
    assert flats.shape[1] == data.shape[1]
    assert len(angles) == len(data)
    return np.empty((100 if data.shape[1] > 23 else 1, *data.shape), data.dtype)[0]
