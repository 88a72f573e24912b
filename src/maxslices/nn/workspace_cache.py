"""Workspaces measured on a device, kept in files beside the records."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import torch

from ..measure.cache_dir import cache_file, keep, read_cached
from .replay import OperatorCall, Workspaces
from .replay.measure_workspaces import calibrate, no_limit, place


def measured_workspaces(
    calls: Iterable[OperatorCall], device: torch.device
) -> tuple[Workspaces, float]:
    """Workspaces of calls on a CUDA device.

    Parameters
    ----------
    calls : iterable of OperatorCall
        Calls of a step. Those not yet measured on this device at their batch size are measured.
    device : torch.device
        A CUDA device.

    Returns
    -------
    Workspaces
        Workspaces of these calls, and of all calls measured before.
    float
        Seconds spent measuring; 0.0 if all calls were known.
    """
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    with torch.cuda.device(device):
        path = cache_file("workspaces", place())
        known = _read(path)
        missing = list(calls) if known is None else known.missing(calls)
        if known is not None and not missing:
            return known, 0.0
        began = time.perf_counter()
        with no_limit(device):
            found = calibrate(missing, known)
        torch.cuda.empty_cache()
    keep(path, found.as_plain())
    return found, time.perf_counter() - began


def _read(path: Path) -> Workspaces | None:
    try:
        return Workspaces.from_plain(read_cached(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # not there, or not what was written: it is measured again
