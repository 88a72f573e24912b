"""Sequences recorded on an NVIDIA H200 by docs/scripts/record_sequences.py (2026-11-22 and 24)."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from maxslices.estimate.peak_model import Observation, PeakModel
from maxslices.measure.allocation_sequence import AllocationSequence

FILE = Path(__file__).with_name("h200_sequences.jsonl.xz")


@dataclass(frozen=True)
class Recorded:
    """A case, with its calls by their slices."""

    name: str
    parameters: str
    dtype: str
    calls: dict[int, Any]

    def observation(self, n):
        return Observation.of(AllocationSequence.from_plain(self.calls[n]["sequence"]))

    def __str__(self):
        return " ".join(filter(None, (self.name, self.dtype, self.parameters)))


@cache
def recorded():
    """All cases."""
    return _read(FILE)


@cache
def recorded_packages():
    """Functions of packages that maxslices knows nothing of, on 3 to 17 slices and on 64."""
    return _read(FILE.with_name("h200_packages.jsonl.xz"))


def _read(path: Path):
    cases: dict[tuple[str, ...], dict[int, Any]] = {}
    with lzma.open(path, "rt") as file:
        for line in file:
            call = json.loads(line)
            parameters = ", ".join(f"{k}={v}" for k, v in call["parameters"].items())
            key = call["case"], parameters, call["dtype"]
            cases.setdefault(key, {})[call["n"]] = call
    return tuple(Recorded(*key, calls) for key, calls in cases.items())


@cache
def recorded_sizes():
    """Peaks of httomolibgpu's methods at five sizes, from 3, 5 and 8 slices, by case and dims."""
    calls: dict[str, dict[tuple[int, int], list[Observation]]] = {}
    with lzma.open(FILE.with_name("h200_sizes.jsonl.xz"), "rt") as file:
        for line in file:
            call = json.loads(line)
            parameters = ", ".join(f"{k}={v}" for k, v in call["parameters"].items())
            name = " ".join(filter(None, (call["case"], call["dtype"], parameters)))
            angles, rows, columns = call["dims"]
            dims = (angles if call["slice_dim"] else rows, columns)
            sequence = AllocationSequence.from_plain(call["sequence"])
            calls.setdefault(name, {}).setdefault(dims, []).append(Observation.of(sequence))
    return {
        name: {dims: PeakModel.fit(seen) for dims, seen in sizes.items()}
        for name, sizes in calls.items()
    }
