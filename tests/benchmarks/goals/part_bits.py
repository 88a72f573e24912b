"""The same bits whatever the block, and wherever the intermediate is."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from maxslices import Pipeline, plan, run
from maxslices.errors import DoesNotFitError

from .data import fill, scan_of
from .machine import DEVICE, cp, empty_device
from .rows import Row

STEPS = ["dark_flat_field_correction", "paganin_filter", "remove_stripe_ti", "fbp"]
PLACES = ("device", "memory", "scratch file")


def rows(quick: bool, folder: Path | None) -> Iterator[Row]:
    """Yield the figures."""
    shape = (61, 70, 96) if quick else (301, 256, 512)
    data = np.empty(shape, np.uint16)
    fill(data)
    source, pipeline = scan_of(data), Pipeline.from_steps(STEPS)
    digests: dict[str, str] = {}
    for place in PLACES if cp is not None else PLACES[1:]:
        for block in (1, 7, 64, max(shape)):
            limits = budgets_for(source, pipeline, place, block)
            name = f"{place}, blocks of {'all' if block == max(shape) else block}"
            if limits is None:
                # a block of all of the intermediate is on the device whole as it is
                yield Row("bits", f"{name}: no budget leads there", 0, "")
                continue
            with tempfile.TemporaryDirectory(dir=folder) as out:
                report = run(source, pipeline, out, device=DEVICE, block=block, **limits)
                with h5py.File(report.files[0]) as file:
                    digest = hashlib.sha256(file["entry/data/data"][()]).hexdigest()
            went = report.plan.sections[0].destination
            assert went == place, f"planned to {place}, ran through {went}"
            assert not any(section.n_splits for section in report.sections), str(report)
            digests[name] = digest
            empty_device()
    first = next(iter(digests.values()))
    for name, digest in digests.items():
        same = float(digest == first)
        yield Row("bits", name, same, "", 1.0, "more", note=f"SHA-256 {digest[:12]}")


def budgets_for(source: Any, pipeline: Pipeline, place: str, block: int) -> dict[str, Any] | None:
    """Return the budgets with which the planner puts the intermediate there, if there are."""
    n_bytes = 4 * int(np.prod(source.spec.shape))
    reserve = 0 if cp is None else 10**9
    factors = (0.2, 0.3, 0.4, 0.5, 0.7, 0.85, 1, 1.15, 1.3, 1.6, 2, 2.5, 3, 4, 6, 10, 20)
    hosts: tuple[float | None, ...] = (
        (None, 0.3, 0.6, 1, 1.3, 1.6, 1.9, 2.2, 2.6, 3, 4) if cp is not None else (None,)
    )
    for host in hosts:
        for factor in factors:
            limits: dict[str, Any] = {"memory": reserve + int(factor * n_bytes)}
            if host is not None:
                limits["host_memory"] = int(host * n_bytes) + 10**7
            try:
                made = plan(source, pipeline, device=DEVICE, block=block, **limits)
            except DoesNotFitError:
                continue
            blocks = [section.block for section in made.sections]
            wanted = [min(block, section.n_slices) for section in made.sections]
            if made.sections[0].destination == place and blocks == wanted:
                return limits
    return None
