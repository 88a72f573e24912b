"""Comparison of a method's results in blocks of two sizes, on the same data.

The result of a run must not depend on its blocks. It does if a method uses neighbouring slices
without declaring a halo, scales by a statistic of the block, works differently above some number of
slices, or works on pairs of slices. In the first case a halo is proposed. In the others, plans
avoid the block sizes that disagree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import takewhile
from typing import Any

from ..core.arrays import ArraySpec, cut
from ..core.compare_arrays import compare_arrays, value_range
from ..devices import Backend
from ..estimate.method_calls import LIMIT_S
from ..estimate.model_request import ModelRequest
from ..estimate.probe import OF_SCAN
from ..system.process_state import quiet, random_state_kept
from ..trial.made_up import finish
from ..trial.trial import Trial
from .effect import ROUNDING, BlockEffect
from .find_halo import find_halo

LARGE, SMALL = 16, 5
"""Slices of the whole and of its blocks. 5 is odd, which reveals methods that work on pairs, and
does not divide 16, so one block is smaller."""
MULTIPLES = (1, 2, 4)
"""Numbers of slices that methods combine: LPRec3d_tomobar uses two as the parts of a complex
number, which mixes them."""
_LEAST_ALIKE = 3
"""Block sizes that must agree for a multiple to be accepted."""
LEAST_S = 0.5
"""Predicted time that a comparison may take for any scan: a quarter of a run's start (2 s, H200,
2026-11-27). For long scans it may take the same fraction as a search for a peak, up to the limit of
measuring. LPRec3d_tomobar is compared in 0.7 s for 2048 rows of 1801 x 2048, which take 14 s.
Without the comparison, it once had blocks of 103 rows, and another result than in even blocks
(H100, 2026-11-27)."""
_FEWER = 8
"""Slices of the larger block if `LARGE` slices take too long or do not fit."""
_HELD_ARRAYS = 6
"""Arrays of the larger block that a comparison holds in addition to a call: its data, changed
data, a copy, two results, and their difference."""
_HALO_DIM = 64
"""Dims of the slices on which halos are measured; a halo does not depend on them."""


def compare_blocks(
    trial: Trial,
    small: int = SMALL,
    halo_trial: Callable[[int], Trial] | None = None,
    most_slices: int = 0,
) -> BlockEffect | None:
    """Compare a method's result in one block with that in smaller ones.

    Parameters
    ----------
    trial : Trial
        The method, with the slices of the larger block.
    small : int
        Slices of the smaller blocks.
    halo_trial : callable, optional
        Returns a trial of the method with so many slices, perhaps of smaller dims, for finding its
        halo.
    most_slices : int
        Most slices of that trial.

    Returns
    -------
    BlockEffect or None
        None if the result is not a block of as many slices.
    """
    return _Comparison(trial).effect(small, halo_trial, most_slices)


class _Comparison:
    """Results of a method for parts of one block, compared with its result for all of it."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.n = trial, trial.n_slices
        self.declared = trial.meta.halo_slices(**trial.parameters)
        self.data, self.side = trial.data(), trial.side()

    def effect(
        self, small: int, halo_trial: Callable[[int], Trial] | None, most_slices: int
    ) -> BlockEffect | None:
        """Compare blocks of `small` slices with the whole; see `compare_blocks`."""
        n = self.n
        self.whole = self.run(0, n)
        if not is_block(self.trial, self.whole, n):
            return None
        self.extent = value_range(self.whole, self.trial.slice_dim)
        difference = self.difference(small, self.declared)
        if difference <= ROUNDING:
            return BlockEffect(n, small, difference)
        if not self.agree(self.whole, self.run(0, n)):
            return BlockEffect(n, small, difference, is_repeatable=False)
        if halo_trial is not None:
            reach = find_halo(halo_trial, most_slices)
            if reach is not None and reach.halo is not None and reach.halo != self.declared:
                before, after = (max(pair) for pair in zip(reach.halo, self.declared, strict=True))
                if self.difference(small, (before, after)) <= ROUNDING:
                    return BlockEffect(n, small, difference, halo=(before, after))
        agree_from, multiple = self.agreement()
        return BlockEffect(n, small, difference, agree_from=agree_from, multiple=multiple)

    def run(self, low: int, high: int) -> Any:
        """Result for the slices from `low` up to `high`."""
        with quiet():  # warnings about made-up data are not helpful
            return self.trial.call_part(self.data, low, high, self.side)

    def part(self, result: Any, low: int, high: int) -> Any:
        """Slices of a result."""
        return cut(result, self.trial.slice_dim, low, high)

    def difference(self, size: int, halo: tuple[int, int]) -> float:
        """Largest difference between the whole and blocks of a size, relative to its range."""
        with quiet():
            blocks = self.trial.blocks(self.data, size, halo)
        axis = self.trial.slice_dim
        gaps = [
            compare_arrays(self.part(self.whole, i, i + got.shape[axis]), got, axis).largest
            for i, got in blocks
        ]
        return max(gaps) / self.extent

    def agree(self, expected: Any, got: Any) -> bool:
        """True if two results are equal up to rounding."""
        gap = compare_arrays(expected, got, self.trial.slice_dim).largest
        return gap <= ROUNDING * self.extent

    def agreement(self) -> tuple[int | None, int]:
        """Smallest size from which blocks agree with the whole, and the multiple of the sizes."""
        n, (_, after) = self.n, self.declared

        @cache
        def agrees(size: int) -> bool:
            """Compare a block at the beginning."""
            sure = max(1, size - after)  # a block's last slices lack their halo
            result = self.run(0, size)
            if not is_block(self.trial, result, size):
                return False
            return self.agree(self.part(self.whole, 0, sure), self.part(result, 0, sure))

        for multiple in MULTIPLES:
            sizes = range(multiple * ((n - 1) // multiple), 0, -multiple)
            alike = list(takewhile(agrees, sizes))
            if multiple == 1 and alike:
                return alike[-1], 1
            if len(alike) >= _LEAST_ALIKE and self.last_agrees(multiple):
                return alike[-1], multiple
        return None, 1

    def last_agrees(self, multiple: int) -> bool:
        """Compare blocks of a multiple, and a last one of another size, with all slices but one."""
        n, size = self.n - 1, multiple * (self.n // 2 // multiple)
        whole = self.run(0, n)
        for start in range(0, n, size):
            stop = min(n, start + size)
            low, high = max(0, start - self.declared[0]), min(n, stop + self.declared[1])
            result = self.part(self.run(low, high), start - low, stop - low)
            if not self.agree(self.part(whole, start, stop), result):
                return False
        return True


def is_block(trial: Trial, result: Any, n_slices: int) -> bool:
    """True if a result has these slices."""
    return getattr(result, "ndim", 0) == 3 and result.shape[trial.slice_dim] == n_slices


def call_times_s(trial: Trial, few: int, many: int) -> tuple[float, float]:
    """Seconds of a call, and of each slice in it, by a line through two numbers of slices.

    Each is called twice and timed the second time, because in a run the earlier call leaves memory
    and FFT plans. They took nine tenths of the first calls of httomolibgpu's paganin_filter (H200).
    """
    comparison = _Comparison(trial)
    few_s, many_s = (_second_call_s(comparison, n_slices) for n_slices in (few, many))
    slice_s = max(0.0, many_s - few_s) / (many - few)
    return max(0.0, few_s - few * slice_s), slice_s


def _second_call_s(comparison: _Comparison, n_slices: int) -> float:
    taken_s = 0.0
    for _ in range(2):
        finish(comparison.trial.backend)
        began = time.perf_counter()
        comparison.run(0, n_slices)
        finish(comparison.trial.backend)
        taken_s = time.perf_counter() - began
    return taken_s


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
        Measured seconds of a call, and of each slice in it.
    fitting_slices : int
        Slices of one call that fit in the memory available.
    side : mapping
        Flats and darks as `ArraySpec`; missing ones are made up.

    Returns
    -------
    BlockEffect or str
        The effect, or the reason why blocks were not compared: time, memory, or an exception of the
        method. "" if its result is not a block of slices.
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
            effect = compare_blocks(
                whole,
                small,
                lambda n_slices: trial(n_slices, (first, second)),
                request.total_slices,
            )
            if effect is None:
                return ""
            return replace(effect, pace_s=call_times_s(whole, small, n))
        except Exception as error:  # noqa: BLE001 - a method may refuse a number of slices
            return f"it raised {type(error).__name__}"
        finally:
            backend.release()


def _slices(request: ModelRequest, pace_s: tuple[float, float], fitting_slices: int) -> int | str:
    """Slices of the larger block, or the reason why blocks are not compared."""
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
