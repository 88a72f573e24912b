"""A GPU that is made up: bytes are only counted, and time passes when a method says so."""

from __future__ import annotations

import types
from contextlib import contextmanager

import numpy as np

from maxslices.core.block_memory import MODULES_BYTES
from maxslices.core.declaration import describe
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.probe import probe
from maxslices.measure import Peak

MB = 10**6
GRAIN = 2 * 2**20
DIMS = (1801, 2560)
ALONE = "derived from its peaks alone: no allocations were recorded"
"""Note of all that is found on this GPU."""
INPUT_BYTES = 1801 * 2560 * 4


class Gpu:
    """Fake of CuPy, the backend, the meters and the clock, which only counts bytes."""

    kind = "cuda"
    name = "cuda:0"
    reserved_bytes, modules_bytes = 700 * 2**20, MODULES_BYTES

    def __init__(self):
        self.pool = self.outside = self.highest_outside = self.inside = self.limit = 0
        self.held = self.flats_bytes = 0
        self.kept = self.freed = 0  # retained by the method, and of that replaced by the last call
        self.most = 0  # in use at any time, without what stays outside
        self.kind_of_data = "even"
        self.now_s = 0.0
        self.counts = []

    # The method.

    def take(self, n, *, inside=0, outside=0, stays=0, lost=0, seconds=0.0):
        self.counts.append(n)
        self.inside = int(inside)
        self.now_s += seconds
        wanted = self.held + int(inside) + INPUT_BYTES * n
        # `lost` is what the pool holds and cannot hand out.
        if self.limit and wanted - self.freed + lost > self.limit:
            raise MemoryError
        self.pool = max(self.pool, wanted)
        self.most = max(self.most, wanted + int(outside))
        self.highest_outside = self.outside + int(outside) + int(stays)
        self.outside += int(stays)

    def make_frames(self, samples, shape):
        if "flats" not in samples.meta.supplied:
            return {}
        self.held = self.flats_bytes
        return {"flats": types.SimpleNamespace(nbytes=self.flats_bytes)}

    # The backend, and the meters.

    def free_bytes(self):
        return 140 * 10**9

    @contextmanager
    def limited(self, budget_bytes):
        before, self.limit = self.limit, self.held + budget_bytes
        try:
            yield
        finally:
            self.limit = before

    def release(self):
        self.pool = 0

    @contextmanager
    def measure_peak(self, kind, record):
        peak, before = Peak("cuda"), -(-self.outside // GRAIN) * GRAIN
        yield peak
        peak.cupy_in_use_bytes, peak.earlier_freed_bytes = self.inside, self.freed
        peak.outside_bytes = -(-self.highest_outside // GRAIN) * GRAIN - before
        peak.outside_after_bytes = -(-self.outside // GRAIN) * GRAIN - before

    def module(self, backend):
        stream = types.SimpleNamespace(synchronize=lambda: None)
        pool = types.SimpleNamespace(total_bytes=lambda: self.held + self.kept)
        return types.SimpleNamespace(
            cuda=types.SimpleNamespace(get_current_stream=lambda: stream),
            get_default_memory_pool=lambda: pool,
        )

    def perf_counter(self):
        return self.now_s


def probed_on(gpu, take, available_bytes, **kw):
    def method(data, flats):
        gpu.take(data.shape[1], **take(data.shape[1]))
        return data

    meta = describe(method, pattern="sinogram", name="f", module="m")
    request = ModelRequest(meta, 1, DIMS, np.dtype("f4"), {}, 2160)
    return probe(request, gpu, available_bytes=available_bytes, **kw)


def most_of(needs, available):
    return max(n for n in range(1, 2161) if needs(n) <= available)


def check(answer, needs, available, least=0.98):
    right = most_of(needs, available)
    assert least * right <= answer.answer <= right, (answer.answer, right, answer.notes)
    model = answer.model()
    assert [n for n in range(1, right + 1) if model.bytes(n) < needs(n) - GRAIN] == []


def needs_of(take):
    def needs(n):
        taken = take(n)
        return INPUT_BYTES * n + taken["inside"] + taken.get("outside", 0)

    return needs


def array_depth(n):
    """Return the slices that CUDA makes of n in a 3D array."""
    return 1 << (n - 1).bit_length() if n <= 16 else -(-n // 16) * 16
