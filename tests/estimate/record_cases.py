"""Probes and requests that the tests of records share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from maxslices.core.declaration import describe
from maxslices.devices import select_backend
from maxslices.estimate import ModelRequest
from maxslices.estimate.peak_model import Observation, PeakModel
from maxslices.estimate.probe import one_array
from maxslices.estimate.probe_result import Probe
from maxslices.estimate.request_key import Environment, environment, request_key
from maxslices.measure.allocation_sequence import CallSite, SequenceBuilder
from maxslices.trial.trial import MeasuredCall

from .recorded_sequences import recorded

CPU = select_backend("cpu")
PROBE = Probe(
    peaks=PeakModel.fit([one_array(1, 100), one_array(2, 170)], 1),
    kept=((1, 10), (2, 20)),
    rungs=(
        MeasuredCall(1, 93, 3, 1, 0, 0, 0.25, ("something",)),
        MeasuredCall(2, 163, 3, 0, 1, 0, 0.5),
    ),
    available_bytes=1000,
    total_slices=50,
    sure=True,
    duration_s=0.75,
    notes=("a note",),
)


def answering(n):
    return replace(PROBE, available_bytes=10**6, total_slices=n)


def blur(data, *, size: int = 3, weights: list[float] | None = None, flats=None):
    return data


META = describe(blur, pattern="projection", module="lab.filters")


def asked(meta=META, slice_dim=0, dims=(10, 20), dtype="float32", supplied=None, **parameters):
    request = ModelRequest(meta, slice_dim, dims, np.dtype(dtype), parameters, 50)
    return request_key(request, supplied)


HERE = environment(CPU, blur)

LPREC = next(case for case in recorded() if str(case).startswith("LPRec3d"))
PEAKS = PeakModel.fit([LPREC.observation(n) for n in (3, 5, 8)]).pruned()
FOUND = replace(PROBE, peaks=PEAKS, available_bytes=PEAKS.bytes(13), extrapolates_exactly=True)
H200 = Environment("NVIDIA H200", {"cupy": "14.2", "cuda driver": "13000"})
LAPTOP = Environment("NVIDIA RTX A1000", {"cupy": "14.2", "cuda driver": "12080"})

SIZES = ((1801, 2560), (901, 1279), (1200, 2048), (777, 1111))
OTHERS = ((1999, 2333), (2160, 2048), (500, 4000))


def strange(n, dims):
    """A workspace whose size follows from no product of dims."""
    building = SequenceBuilder(n)
    site = building.site(CallSite("a.py", 1, "f", "1"))
    building.alloc(n * int(dims[1] ** 1.37), site)
    return Observation.of(building.sequence())


def rfft(n, dims):
    rows, columns = dims
    building = SequenceBuilder(n)
    sites = [building.site(CallSite("a.py", line, "f", str(line))) for line in range(4)]
    building.alloc(2 * n * rows * columns, sites[0])
    spectrum = building.alloc(8 * n * rows * (columns // 2 + 1), sites[1])
    building.alloc(8 * n * rows * columns + 4 * columns, sites[2])
    building.free(spectrum)
    building.alloc(1 << (2 * columns - 1).bit_length(), sites[3])
    return Observation.of(building.sequence())


def peaks(method, dims):
    return PeakModel.fit([method(n, dims) for n in (3, 5, 8)])
