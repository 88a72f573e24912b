"""Ledgers suggested from what a GPU would be asked for, which the pack's own ledgers tell.

What these say was measured on an H200, and so were the suggestions: 1.09 and 1.12 times too high
for `fbp`, as they were here.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from maxslices import from_ledger
from maxslices.core.arrays import block_shape
from maxslices.core.declaration import describe
from maxslices.core.ledger import Ledger
from maxslices.core.named_method import method_named
from maxslices.measure import Place
from maxslices.measure.allocation_sequence import CallSite, SequenceBuilder
from maxslices.measure.sequence_recorder import INPUT
from maxslices.suggest import suggest_ledger as suggesting
from maxslices.suggest.fft_plans import FftPlan
from maxslices.suggest.traced_runs import _DIMS, _LARGE_DIMS, TracedRun


class RecordingLedger(Ledger):
    """A ledger whose allocations become a sequence, by the lines that enter them."""

    __slots__ = ("building", "indices", "plans")

    def __init__(self, n_slices):
        super().__init__("cuda")
        self.building, self.indices, self.plans = SequenceBuilder(n_slices), {}, []

    def alloc_bytes(self, n_bytes):
        made, frame, lines = super().alloc_bytes(n_bytes), sys._getframe(1), []
        while frame.f_code.co_filename != __file__:
            lines.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        site = CallSite("method.py", 1, "method", " ".join(lines)) if self.indices else INPUT
        which = self.building.alloc(int(n_bytes), self.building.site(site))
        self.indices[id(made)] = which, made  # kept: ids are used again
        return made

    def free(self, *allocations):
        super().free(*allocations)
        for each in allocations:
            self.building.free(self.indices[id(each)][0])

    def keep(self, n_bytes):
        self.kept_bytes += super().alloc_bytes(n_bytes).n_bytes

    def fft(self, shape, dtype, axes, kind="c2c"):
        before = set(self._plans)
        super().fft(shape, dtype, axes, kind)
        for batch, dims, made, is_single in set(self._plans) - before:
            self.plans.append(FftPlan(0, 0, Place("method.py", 1), dims, batch, made, is_single))


class Maker:
    """Stands for `RunMaker`."""

    backend_kind = "cuda"

    def __init__(self, meta, slice_dim, device, parameters):
        self.meta, self.slice_dim, self.parameters = meta, slice_dim, parameters

    def runs(self, dtype):
        blocks = [block_shape(self.slice_dim, n, other) for n, *other in _DIMS + _LARGE_DIMS]
        return [self.run(shape, dtype) for shape in blocks]

    def run(self, shape, dtype):
        ledger, estimator = RecordingLedger(shape[self.slice_dim]), self.meta.estimator
        known = {"slice_dim": self.slice_dim, **self.meta.merged(**self.parameters)}
        given = {name: known[name] for name in estimator.keywords}
        estimator.function(ledger, shape, np.dtype(dtype), **given)
        sequence = ledger.building.sequence()
        return TracedRun(shape, np.dtype(dtype), sequence, ledger.peak_bytes, tuple(ledger.plans))


PADDED = pytest.mark.xfail(reason="0.6 % too low: its pads depend on both dims", strict=True)


@pytest.mark.parametrize(
    "name",
    ["fbp", pytest.param("remove_stripe_fw", marks=PADDED), "remove_stripe_based_sorting"],
)
def test_suggestions_hold_at_other_sizes(monkeypatch, name):
    monkeypatch.setattr(suggesting, "RunMaker", Maker)
    meta = method_named(name)
    found = suggesting.suggest_ledger(meta, "float32", {}, "cuda")
    maker = Maker(meta, meta.slice_dims()[0], "cuda", {})
    for shape in ((52, 330, 410), (60, 253, 500)):
        ledger = Ledger("cuda")
        found.estimator().function(ledger, shape, np.dtype("float32"))
        most = maker.run(shape, "float32").peak_bytes
        assert 0.999 * most <= ledger.peak_bytes <= 1.02 * most


@from_ledger
def as_many_as_memory_holds(m, shape, dtype):
    """Sinograms filtered at a time by remove_stripe_fw: 2**26 numbers over what each takes."""
    angles, _, columns = shape
    waves = sum(min(-(-angles // 2**level), 40) for level in range(angles.bit_length()))
    numbers = angles * columns, waves * columns, waves * 10 * ((columns + 9) // 2)
    at_a_time = 2**26 // sum(numbers)
    m.alloc(shape, dtype)
    m.alloc(shape, "float32")
    m.alloc_bytes(4 * at_a_time * numbers[0])
    m.alloc_bytes(4 * at_a_time * numbers[1])
    m.alloc_bytes(4 * at_a_time * numbers[2])


def test_arrays_of_as_many_slices_as_memory_holds_are_known_by_their_sum(monkeypatch):
    monkeypatch.setattr(suggesting, "RunMaker", Maker)
    meta = describe(
        lambda data: data,
        pattern="sinogram",
        name="filtered",
        module="m",
        output_dtype="float32",
        calc_max_slices=as_many_as_memory_holds,
    )
    found = suggesting.suggest_ledger(meta, "float32", {}, "cuda")
    assert any("as their sum" in note for note in found.notes)
    for shape in ((330, 52, 410), (253, 60, 500), (1801, 64, 2560)):
        ledger = Ledger("cuda")
        found.estimator().function(ledger, shape, np.dtype("float32"))
        most = Maker(meta, 1, "cuda", {}).run(shape, "float32").peak_bytes
        assert most <= ledger.peak_bytes <= 1.02 * most
