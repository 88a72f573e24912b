"""The peak of a call as a sum of allocations, each with its line and its formula in the slices."""

from __future__ import annotations

from ..core.allocators import CUDA_GRANULE_BYTES
from ..core.units import format_bytes
from ..errors import MaxslicesError
from ..estimate.peak_model import Observation, PeakModel
from ..trial.trial import THE_CALL, Trial, is_call

FEW = (3, 5, 8)
"""Slices of calls beside the one that is measured: they tell lines from pairs and chunks."""
_SMALL = 1 / 1000
"""Allocations below a thousandth of the peak are added up in one row."""
_MAX_ROWS = 12
"""Rows at most, so that they fit a screen."""
_MAX_CODE = 60
"""Characters of a line of code."""


def explain_call(trial: Trial) -> PeakModel | None:
    """Find the allocations alive at the peak, each with a formula in the number of slices.

    The method is called with a few slices more. None if no sequence is recorded of its library, or
    it cannot be called with two numbers of slices.
    """
    if trial.sampled or trial.meta.array_module == "torch":
        return None
    granule = CUDA_GRANULE_BYTES if trial.backend.kind == "cuda" else 1
    trial.is_recorded, seen = True, []
    for n in sorted({*(few for few in FEW if few < trial.n_slices), trial.n_slices}):
        try:
            trial.once(n)
        except MaxslicesError:
            raise
        except Exception:  # noqa: BLE001 - a method may refuse a number of slices in any way
            continue
        if trial.sequence is not None:
            seen.append(Observation.of(trial.sequence, granule))
    if len(seen) < 2 or not all(each.moments for each in seen):
        return None
    return PeakModel.fit(seen, granule)


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
    if is_call(site):
        return THE_CALL
    short = "/".join(site.filename.split("/")[-2:])  # of a record its file may be elsewhere
    return f"{short}:{site.line} in {site.function}"


def _code(peaks: PeakModel, path: str) -> str:
    """Line of code of a call site, where its file is here."""
    site = peaks.sites.get(path)
    text = "" if site is None or is_call(site) else site.code
    return text if len(text) <= _MAX_CODE else f"{text[: _MAX_CODE - 3].rstrip()}..."
