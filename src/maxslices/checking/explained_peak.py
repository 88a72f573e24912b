"""The peak of a call as a sum of allocations, each with its line and its formula in the slices."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ..core.allocators import CUDA_GRANULE_BYTES
from ..core.units import format_bytes
from ..errors import MaxslicesError
from ..estimate.peak_model import Observation, PeakModel
from ..measure import Place
from ..measure.allocation_sequence import AllocationSequence
from ..measure.sequence_recorder import SequenceRecorder, record_sequence
from ..trial.made_up import finish
from ..trial.trial import THE_CALL, Trial, is_call

FEW = (3, 5, 8)
"""Slices of calls beside the one that is measured: they tell lines from pairs and chunks."""
_SEEN_BYTES = 1024
"""Smaller allocations on the CPU are not looked at: Python code makes many of a few bytes."""
_SMALL = 1 / 1000
"""Allocations below a thousandth of the peak are added up in one row."""
_MAX_ROWS = 12
"""Rows at most, so that they fit a screen."""
_MAX_CODE = 60
"""Characters of a line of code."""


def recording(
    trial: Trial, n_slices: int, n_bytes: int, least_bytes: int, *, names: bool
) -> AbstractContextManager[SequenceRecorder] | Any:
    """Recorder of what a call asks its array library for.

    Parameters
    ----------
    trial : Trial
        The method.
    n_slices, n_bytes : int
        Slices and bytes of the input.
    least_bytes : int
        On the CPU smaller allocations are left out.
    names : bool
        Whether arrays are named by the variables that hold them. Looking for these keeps some
        arrays alive a little longer.
    """
    if trial.meta.array_module == "torch":
        from ..measure.torch_sequence import record_torch_sequence

        return record_torch_sequence(n_slices, n_bytes, least_bytes=least_bytes)
    if trial.backend.kind == "cuda":
        return record_sequence(n_slices, n_bytes, names=names)
    from ..measure.numpy_sequence import record_numpy_sequence

    return record_numpy_sequence(n_slices, n_bytes, names=names, least_bytes=least_bytes)


def explain_call(trial: Trial) -> PeakModel | None:
    """Find the allocations alive at the peak, each with a formula in the number of slices.

    The method is called with a few slices more. None if no sequence is recorded of its library, or
    it cannot be called with two numbers of slices.
    """
    if trial.sampled or (trial.meta.array_module == "torch" and trial.backend.kind == "cuda"):
        return None
    granule = CUDA_GRANULE_BYTES if trial.backend.kind == "cuda" else 1
    seen = []
    for n in sorted({*(few for few in FEW if few < trial.n_slices), trial.n_slices}):
        sequence = _sequence(trial, n)
        if sequence is not None:
            seen.append(Observation.of(sequence, granule))
    if len(seen) < 2 or not all(each.moments for each in seen):
        return None
    return PeakModel.fit(seen, granule)


def _sequence(trial: Trial, n: int) -> AllocationSequence | None:
    """Allocations of one call; None if the method refuses so few slices."""
    data, side = trial.data(n), trial.side(n)
    try:
        with recording(trial, n, int(data.nbytes), _SEEN_BYTES, names=False) as recorder:
            result = trial.call(data, side)
            finish(trial.backend)
    except MaxslicesError:
        raise
    except Exception:  # noqa: BLE001 - a method may refuse a number of slices in any way
        return None
    del result
    return recorder.sequence()


def explained_peak(peaks: PeakModel, n: int) -> list[str]:
    """Lines of text: the sum, then the allocations alive at the peak, the largest first."""
    label = peaks.highest(n)
    total = peaks.predicted(n)
    rows = sorted(
        ((term.n_bytes(n, peaks.granule_bytes), term) for term in peaks.moments[label]),
        key=lambda row: -row[0],
    )
    lines = [f"{n} slices take {format_bytes(total)} at {place_of(peaks, label)}:"]
    cells: list[tuple[str, str, str, str, str]] = []
    small_bytes = 0
    for n_bytes, term in rows:
        if n_bytes < _SMALL * total or len(cells) == _MAX_ROWS:
            small_bytes += n_bytes
            continue
        number = "" if str(term.number) == "1" else f"({term.number}) arrays of "
        parts = dict.fromkeys((_name(peaks, term.path), place_of(peaks, term.path)))
        place = " ".join(filter(None, parts))
        share = f"{n_bytes / total:.0%}"
        cells.append(
            (
                format_bytes(n_bytes),
                share,
                f"{number}{term.size} bytes",
                place,
                _code(peaks, term.path),
            )
        )
    if small_bytes:
        cells.append(
            (format_bytes(small_bytes), f"{small_bytes / total:.0%}", "smaller ones", "", "")
        )
    wide = [max(len(cell[i]) for cell in cells) for i in (2, 3)]
    return lines + [
        f"{size:>10} {share:>4}  {formula:<{wide[0]}}  {place:<{wide[1]}}  {code}".rstrip()
        for size, share, formula, place, code in cells
    ]


def _name(peaks: PeakModel, path: str) -> str:
    """Name and dtype of an array, without its shape, which changes with the slices."""
    return " ".join(peaks.names.get(path, "").split(" ")[:2])


def place_of(peaks: PeakModel, path: str) -> str:
    """File, line and function of a call site, or what it is."""
    site = peaks.sites.get(path)
    if site is None or not site.filename:
        return path
    if is_call(Place(site.filename, site.line)):
        return THE_CALL
    short = "/".join(site.filename.split("/")[-2:])  # of a record its file may be elsewhere
    return f"{short}:{site.line} in {site.function}"


def _code(peaks: PeakModel, path: str) -> str:
    """Line of code of a call site, where its file is here."""
    site = peaks.sites.get(path)
    place = None if site is None else Place(site.filename, site.line)
    text = "" if place is None or is_call(place) else place.code
    return text if len(text) <= _MAX_CODE else f"{text[: _MAX_CODE - 3].rstrip()}..."
