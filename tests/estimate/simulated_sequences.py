"""Simulated GPU on which methods are lists of allocations, as in `made_up_gpu`."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from maxslices.core.declaration import describe
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.probe import probe
from maxslices.measure.allocation_sequence import AllocationSequence, CallSite, SequenceBuilder
from maxslices.measure.peak import OutsideReading

from .made_up_gpu import DIMS, INPUT_BYTES, Gpu
from .pool_pieces import PoolOfPieces


class Program:
    """One call of a method, which allocates by line numbers."""

    def __init__(self, n):
        self.n = n
        self.building = SequenceBuilder(n)
        self.input = self.alloc(INPUT_BYTES * n, 0)

    def alloc(self, n_bytes, line):
        site = CallSite("method.py", line, "method", str(line))
        return self.building.alloc(int(n_bytes), self.building.site(site))

    def free(self, *which):
        for each in which:
            self.building.free(each)

    def sequence(self):
        return self.building.sequence()


def refused_event(sequence, limit_bytes):
    """Index of the allocation that a pool refuses; None if it gives all."""
    pool, chunks = PoolOfPieces(limit_bytes), {}
    for i, event in enumerate(sequence.events):
        try:
            if event.site is None:
                pool.free(chunks.pop(event.which))
            else:
                chunks[i] = pool.malloc(event.n_bytes)
        except MemoryError:
            return i
    return None


def peak_event(sequence):
    """Index of the event after which most is in use."""
    sizes = list(sequence.alive_bytes())
    return sizes.index(max(sizes))


class SequenceGpu(Gpu):
    """Runs programs in a pool like CuPy's, and counts the calls."""

    def __init__(self):
        super().__init__()
        self.seconds = lambda n: 0.005
        self.outside_of = lambda n: 0
        self.outside_at = peak_event
        self.gives_back = True  # whether free memory returns to the driver

    def run(self, method, n):
        program = Program(n)
        method(program)
        self.counts.append(n)
        self.sequence = program.sequence()
        self.now_s += self.seconds(n)
        refused = refused_event(self.sequence, self.limit) if self.limit else None
        if refused is not None:
            events = self.sequence.events[: refused + 1]
            self.sequence = AllocationSequence(n, self.sequence.sites, events)
            raise MemoryError

    def most_bytes(self, method, n):
        program = Program(n)
        method(program)
        return program.sequence().peak_bytes()

    @contextmanager
    def measure_peak(self, kind, record):
        with super().measure_peak(kind, record) as peak:
            try:
                yield peak
            finally:
                peak.sequence = self.sequence
        peak.cupy_in_use_bytes = self.sequence.peak_bytes() - -(-record[1] // 512) * 512
        outside = int(self.outside_of(record[0]))
        sizes = list(self.sequence.alive_bytes())
        at = self.outside_at(self.sequence)
        held = sizes[at] if self.gives_back else max(sizes[: at + 1])
        held += peak.cupy_in_use_bytes - max(sizes)  # without the input
        peak.outside_readings = (OutsideReading(at, held, outside),)
        peak.outside_bytes = max(0, held + outside - peak.cupy_in_use_bytes)
        peak.outside_after_bytes = 0


def probed_program(gpu, method, available_bytes, total=2160, **kw):
    def run(data):
        gpu.run(method, data.shape[1])
        return data

    meta = describe(run, pattern="sinogram", name="f", module="m")
    request = ModelRequest(meta, 1, DIMS, np.dtype("f4"), {}, total)
    return probe(request, gpu, available_bytes=available_bytes, **kw)
