"""The memory model of a method that nobody wrote an estimator for: measured.

The method is run on a few slices, then on more, and its peak measured each time, until it is
safe to say how it goes on (`Climb`, `Ladder`).
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
"""Time for the rungs of one probe; a first call that compiles may take longer."""


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
    """Find a method's memory model by running it on a few slices.

    Parameters
    ----------
    request : ModelRequest
        The method, with its parameters and data.
    backend : Backend
        The device; it is run there.
    available_bytes : int
        Memory that the method may take; what would fit is sought.
    first_slices : ndarray, optional
        The first slices of the scan, on the host, axes (angles, detector_y, detector_x);
        made up if not given.
    supplied : mapping, optional
        Flats, darks and angles; made up if not given, or if flats and darks are given as an
        `ArraySpec`. They are not counted.
    limit_s : float
        Time for the measurements: up to three times as much if every call is long, or if it is
        still little beside what the whole scan takes.
    strictly : bool
        Whether to keep all that is in use meanwhile within `available_bytes`, flats and darks
        included. On a GPU a call that needs more is stopped, and was given too many slices; what
        nothing stops, as on the CPU, is not begun if it may take more at worst. Only the fewest
        slices that the method runs on may: it is told what they take.

    Returns
    -------
    Probe

    Raises
    ------
    EstimatorError
        If the method raises, whatever the number of slices; or not even the fewest slices
        that it runs on fit in the device's memory.

    Notes
    -----
    On the CPU, resident memory that C libraries allocate shows from some 32 MiB up.
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
