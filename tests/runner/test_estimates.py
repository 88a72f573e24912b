"""Measured and estimated memory of sections on the CPU, at realistic sizes."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from maxslices import Pipeline, run
from tests.planner.fakes import fakes

SHAPE = (96, 160, 1024)  # 31 MB of uint16
SAVED = {"method": "negate", "save_result": True}
FEW = {"method": "crop", "parameters": {"keep": 700}}

CASES = {
    "projections": (["negate", "to_float"], {"block": 24}),
    "one block": (["negate", "to_float"], {"block": 1000}),
    "sinograms": (["work", "to_float"], {"block": 40}),
    "both": (["to_float", "negate", "work"], {"block": 40}),
    "scratch between": (["to_float", "negate", "work"], {"memory": "47MB"}),
    "halo of projections": (["reaching", "to_float"], {"block": 24}),
    "halo of sinograms": (["work", "neighbours"], {"block": 40}),
    "saved in mid-section": (["to_float", SAVED, "negate"], {"block": 24}),
    "saved at a section's end": (["to_float", SAVED, "work"], {"block": 40}),
    "side results at the end": (["to_float", "negate", "extremes"], {"block": 24}),
    "other shape": (["to_float", FEW, "work"], {"block": 40}),
    "in place": (["triple_in_place", "to_float"], {"block": 24}),
    "the input itself": (["same", "negate"], {"block": 48}),
    "a view of the input": (["negate", "left"], {"block": 48}),
}  # fmt: skip
NO_COPY = {"in place": 0.65, "the input itself": 0.4, "a view of the input": 0.4}
"""Lower bound of the ratio. Their results share the input's memory, which no plan can know."""


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    data = np.random.default_rng(0).integers(1, 999, SHAPE, np.uint16)
    np.save(folder / "scan.npy", data)
    with h5py.File(folder / "scan.h5", "w") as file:
        file.create_dataset("entry/data/data", data=data, chunks=(1, *SHAPE[1:]))
    return {"array": data, "npy": folder / "scan.npy", "h5": folder / "scan.h5"}


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("kind", ["array", "npy", "h5"])
@pytest.mark.parametrize("case", CASES)
def test_estimates_are_high_enough_and_not_much_too_high(
    monkeypatch, tmp_path, scans, case, kind, in_turns
):
    if in_turns:
        monkeypatch.setattr(
            "maxslices.planner.placement.Placement.with_best_overlap",
            lambda self, available: self.in_turns(),
        )
    steps, kwargs = CASES[case]
    pipeline = Pipeline.from_steps(steps, fakes)
    report = run(scans[kind], pipeline, tmp_path / "out", device="cpu", **kwargs)
    for section in report.sections:
        assert NO_COPY.get(case, 0.8) <= section.ratio <= 1, (
            section.methods,
            section.ratio,
            section.block,
        )
