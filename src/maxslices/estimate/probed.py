"""Memory models of methods without an estimator, measured.

The method is run with a few slices, then with more, and its peak is measured each time, until it is
safe to extrapolate. `Climb` makes the measurements; `Ladder` says which numbers of slices to
measure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..devices import Backend
from ..tuning.garbage_collection import quick_collections
from .bench import Bench, tracemalloc_on
from .climb import Climb
from .model_request import ModelRequest
from .probe_result import Probe
from .random_state import random_state_kept
from .sample_data import Samples

__all__ = ["Probe", "probe"]

LIMIT_S = 2.5
"""Time for the rungs of one probe, so that a pipeline of ten methods is measured in 25 s; a first
call that compiles may take longer."""


def probe(
    request: ModelRequest,
    backend: Backend,
    *,
    available_bytes: int,
    first_slices: np.ndarray | None = None,
    supplied: Mapping[str, Any] | None = None,
    limit_s: float = LIMIT_S,
    strictly: bool = False,
) -> Probe:
    """Measure a method's memory model with a few slices.

    Parameters
    ----------
    request : ModelRequest
        The method, with its parameters and data.
    backend : Backend
        The device on which it is run.
    available_bytes : int
        Memory for which the number of slices that fit is wanted.
    first_slices : ndarray, optional
        The first slices of the scan, on the host, axes (angles, detector_y, detector_x);
        made up if not given.
    supplied : mapping, optional
        Flats, darks and angles, not counted in the peak. What is missing, or given as an
        `ArraySpec`, is made up.
    limit_s : float
        Time for the measurements. Up to 3.2 times as much is used if every call is long, and up to
        five times if that is at most a twentieth of the time of the whole scan.
    strictly : bool
        Whether measuring itself must stay within `available_bytes`, flats and darks included. On a
        GPU the pool is limited, and a call that runs out of it had too many slices. Where nothing
        limits memory (outside the pool, on the CPU) a call is not made if it may take more at
        worst. The fewest slices that the method runs on are exempt: their peak is always measured.

    Returns
    -------
    Probe

    Raises
    ------
    EstimatorError
        If the method raises for any number of slices, or the fewest slices that it runs on do not
        fit in the device's memory.

    Notes
    -----
    On the CPU, resident memory that C libraries allocate counts from 32 MiB up.
    """
    began = time.perf_counter()
    meta = request.meta
    samples = Samples(
        meta,
        request.slice_dim,
        request.other_dims,
        request.dtype,
        backend,
        first_slices,
        dict(supplied or {}),
    )
    with ExitStack() as stack:
        stack.enter_context(random_state_kept())
        stack.enter_context(quick_collections())
        stack.enter_context(backend.limited(backend.free_bytes()))
        stack.enter_context(tracemalloc_on(backend))
        run_bytes = max(1, backend.free_bytes() - backend.reserved_bytes)
        bench = Bench(meta, samples, backend, request.parameters)
        climb = Climb(
            bench,
            backend,
            available_bytes,
            request.most_slices,
            run_bytes,
            limit_s,
            strictly=strictly,
        )
        climb.run()
        bench.close()
    return climb.result(time.perf_counter() - began)
