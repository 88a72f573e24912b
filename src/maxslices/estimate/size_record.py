"""A method's memory for every size of the detector, made of records at some sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..block_effect.effect import BlockEffect
from ..core.memory_model import MemoryModel
from ..core.plain_records import PlainRecord
from .any_size import SizeClass, SizeEvidence, fit_sizes
from .fingerprint import Environment, RequestKey
from .model_request import Choice
from .peak_model import PeakModel
from .probe_result import Probe
from .recorded import Entry
from .size_bound import SizeBound
from .size_model import Dims, SizeFormula, find_formula

Points = tuple[tuple[int, int], ...]
_LINE_SLICES = (1, 2, 3, 5, 8, 16, 33)
"""Slices at which kept bytes are looked at: a line, if they lie on one."""


@dataclass(frozen=True)
class SizeRecord(PlainRecord):
    """Records of one method at several sizes, and what follows for others."""

    question: RequestKey
    """Key of one of the requests: they differ in their dims alone."""
    place: Environment
    time_s: float
    """When the last of them was measured."""
    classes: tuple[SizeClass, ...]
    """Formulas or bounds in the dims."""
    measured: Mapping[Dims, Points]
    """Measured calls, as (slices, bytes), by dims."""
    own: Mapping[Dims, PeakModel | SizeBound]
    """Peaks at dims of which no formula or bound speaks: by allocations where they are known."""
    output_dtype: str | None
    """Dtype of the result."""
    output_dims: tuple[SizeFormula, SizeFormula] | None
    """Dims of the result by those of the input; None if it is no block of slices."""
    kept: tuple[SizeFormula, SizeFormula] | float
    """Bytes that stay after a call, as a line in n; or a part of the peak."""
    pace: tuple[float, float]
    """Seconds of a call, and of each pixel of a slice beside."""
    blocks: BlockEffect | str
    """What the size of a block does to the result; or why blocks were not compared."""
    is_of_any_card: bool
    """True if nothing in it depends on the card."""
    same: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of parameters between which the memory was the same, by name."""

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        same: Mapping[str, tuple[Any, ...]] | None = None,
    ) -> SizeRecord | None:
        """Make a record of entries that differ in their dims; `same` as in the field.

        None if the result's dims do not follow from the input's.
        """
        probes = {entry.question.other_dims: entry.probe for entry in entries}
        evidence = {
            dims: SizeEvidence(p.model(), p.measured, p.peaks if p.keeps_its_ways else None)
            for dims, p in probes.items()
        }
        outputs = {dims: p.output_dims for dims, p in probes.items() if p.output_dims is not None}
        blocks = [probe.blocks for probe in probes.values()]
        effects = [each for each in blocks if isinstance(each, BlockEffect)]
        classes, output = fit_sizes(evidence), _pair(outputs)
        if outputs and output is None:
            return None
        last = max(entries, key=lambda entry: entry.time_s)
        return cls(
            question=last.question,
            place=last.place,
            time_s=last.time_s,
            classes=classes,
            measured={
                dims: tuple(sorted(each.measured.items())) for dims, each in evidence.items()
            },
            own={
                dims: each.peaks or SizeBound.of_one(dims, each.sizes)
                for dims, each in evidence.items()
                if not any(told.is_told(dims) for told in classes)
            },
            output_dtype=last.probe.output_dtype,
            output_dims=output,
            kept=_kept({dims: each.model for dims, each in evidence.items()}),
            pace=_pace(probes),
            blocks=max(
                effects,
                key=lambda each: (each.least_block, each.difference),
                default=max(map(str, blocks)),
            ),
            is_of_any_card=not any(r.outside_bytes for p in probes.values() for r in p.rungs),
            same=dict(same or {}),
        )

    def at(self, dims: Dims) -> Choice | None:
        """Answer for two dims; None if nothing tells it.

        Smaller ones than any recorded take no more than the smallest with as many columns that are
        told.
        """
        found = self._told(dims)
        if found is None and self.classes:
            least = min(a * b for each in self.classes for a, b in each.peaks.recorded)
            rows = -(-least // dims[1])
            rows += (rows - dims[0]) % 2  # even and odd ones may take different ways
            at_least = self._told((rows, dims[1])) if rows > dims[0] else None
            if at_least is not None:
                how = f"a bound: as much as for {rows}x{dims[1]}, the fewest rows that are told"
                found = replace(at_least, why=f"{how} ({at_least.why})")
        if found is None or self.output_dims is None:
            return found
        first, second = self.output_dims
        return replace(found, output_dims=(first.at(dims), second.at(dims)))

    def _told(self, dims: Dims) -> Choice | None:
        """Answer for dims that something tells."""
        told = next((each.peaks for each in self.classes if each.is_told(dims)), None)
        own = self.own.get(dims)
        if told is not None:
            memory, n_sizes = told.model_at(dims), f"{len(told.recorded)} sizes"
            how = f"formulas that give it to the byte at {n_sizes}"
            if isinstance(told, SizeBound):
                how = f"a bound, {told.above:.2%} above what was measured at {n_sizes} at most"
        elif own is not None:
            memory = own.model_at(dims) if isinstance(own, SizeBound) else MemoryModel(own.rising)
            how = "measured at this size"
        else:
            return None
        call_s, pixel_s = self.pace
        return Choice(
            MemoryModel(memory.bytes, self._kept_at(dims, memory)),
            "recorded",
            how,
            None if self.output_dtype is None else np.dtype(self.output_dtype),
            pace_s=(call_s, pixel_s * dims[0] * dims[1]),
            blocks=self.blocks,
        )

    def _kept_at(self, dims: Dims, memory: MemoryModel) -> Callable[[int], int] | None:
        """Bytes that stay after a call with n slices; None if none do."""
        if isinstance(self.kept, float):
            part = self.kept
            return (lambda n: int(part * memory.bytes(n))) if part else None
        start, step = (formula.at(dims) for formula in self.kept)
        return (lambda n: min(start + step * n, memory.bytes(n))) if start or step else None


def _pair(values: Mapping[Dims, tuple[int, int]]) -> tuple[SizeFormula, SizeFormula] | None:
    """Formulas of two values; None if there are none."""
    if not values:
        return None
    first, second = (find_formula({d: each[i] for d, each in values.items()}) for i in (0, 1))
    return None if first is None or second is None else (first, second)


def _kept(models: Mapping[Dims, MemoryModel]) -> tuple[SizeFormula, SizeFormula] | float:
    """Kept bytes as a line in n with formulas in the dims, else as a part of the peak."""
    lines = {}
    for dims, model in models.items():
        step = model.kept_bytes(2) - model.kept_bytes(1)
        start = model.kept_bytes(1) - step
        if any(model.kept_bytes(n) != start + step * n for n in _LINE_SLICES):
            break
        lines[dims] = start, step
    else:
        found = _pair(lines)
        if found is not None:
            return found
    return max(m.kept_bytes(n) / m.bytes(n) for m in models.values() for n in _LINE_SLICES)


def _pace(probes: Mapping[Dims, Probe]) -> tuple[float, float]:
    """Seconds of a call and of each pixel of a slice, as at the largest size."""
    dims = max(probes, key=lambda each: each[0] * each[1])
    call_s, slice_s = probes[dims].pace_s()
    return float(f"{call_s:.3g}"), float(f"{slice_s / (dims[0] * dims[1]):.3g}")
