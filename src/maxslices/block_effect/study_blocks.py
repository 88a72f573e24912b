"""Compares blocks of a method that is being measured, as far as that is quickly done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..core.arrays import ArraySpec
from ..devices import Backend
from ..estimate.method_calls import LIMIT_S
from ..estimate.model_request import ModelRequest
from ..estimate.probe import OF_SCAN
from ..system.process_state import random_state_kept
from ..trial.trial import Trial
from .compare_blocks import LARGE, SMALL, call_times_s, compare_blocks
from .effect import BlockEffect

LEAST_S = 0.5
"""Time that the calls for a comparison may take of any scan, as predicted: a quarter of what a run
takes to begin (2 s, H200, 2026-11-27). Of long ones it is as large a part as a search for a peak
may take, up to the time of measuring. LPRec3d_tomobar is compared in 0.7 s for 2048 rows of
1801 x 2048, which take 14 s. Without that it had blocks of 103 rows once, and a result that is
another than that of even blocks (H100, 2026-11-27)."""
_FEWER = 8
"""Slices of the larger block where `LARGE` take too long or do not fit."""
_HELD_ARRAYS = 6
"""Arrays of the larger block, as large as input or output, that a comparison holds beside a call:
its data, other values, a copy, two results, and what they are compared with."""
_HALO_DIM = 64
"""Dims of slices on which halos are looked for: how far a slice reaches does not depend on them."""


def study_blocks(
    request: ModelRequest,
    backend: Backend,
    *,
    pace_s: tuple[float, float],
    fitting_slices: int,
    side: Mapping[str, ArraySpec],
) -> BlockEffect | str:
    """Compare a method's results in blocks of two sizes, and time them.

    Parameters
    ----------
    request : ModelRequest
        The method with its parameters and data.
    backend : Backend
        The device on which it is run.
    pace_s : (float, float)
        Measured seconds of a call, and of each slice beside.
    fitting_slices : int
        Slices of one call that fit in the memory available.
    side : mapping
        Flats and darks as `ArraySpec`; what is missing is made up.

    Returns
    -------
    BlockEffect or str
        Or why they were not compared: it would take too long or too much memory, or the method
        fails with such blocks; empty if its result is not a block of slices.
    """
    if request.meta.side_results:
        return ""
    n = _slices(request, pace_s, fitting_slices)
    if isinstance(n, str):
        return n
    meta, parameters = request.meta, request.parameters

    def trial(n_slices: int, dims: tuple[int, int]) -> Trial:
        return Trial(
            meta,
            request.slice_dim,
            dims,
            request.dtype,
            backend,
            parameters,
            frames=side,
            total_slices=n_slices,
        )

    first, second = (min(dim, _HALO_DIM) for dim in request.other_dims)
    with random_state_kept():
        try:
            whole, small = trial(n, request.other_dims), SMALL if n == LARGE else max(1, n // 3)
            found = compare_blocks(
                whole,
                small,
                lambda n_slices: trial(n_slices, (first, second)),
                request.total_slices,
            )
            if found is None:
                return ""
            return replace(found, pace_s=call_times_s(whole, small, n))
        except Exception as error:  # noqa: BLE001 - a method may refuse a number of slices
            return f"it raised {type(error).__name__}"
        finally:
            backend.release()


def _slices(request: ModelRequest, pace_s: tuple[float, float], fitting_slices: int) -> int | str:
    """Slices of the larger block; or why blocks are not compared."""
    call_s, slice_s = pace_s
    limit_s = max(LEAST_S, min(OF_SCAN * request.total_slices * slice_s, LIMIT_S))
    why = ""
    for n in (LARGE, _FEWER):
        taken_s = (6 + n // SMALL) * call_s + (4 * n + 2 * SMALL) * slice_s
        if n > request.most_slices:
            why = f"there are {request.most_slices} slices"
        elif n > fitting_slices // _HELD_ARRAYS:
            why = f"that takes the memory of {n * _HELD_ARRAYS} slices"
        elif taken_s > limit_s:
            why = f"that takes {taken_s:.1f} s"
        else:
            return n
    return why
