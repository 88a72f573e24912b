"""Several scans share the workers that are started, and a plan for each shape."""

from __future__ import annotations

import json

import numpy as np

from maxslices import run, run_scans
from tests.runner.resumable import content, of


def test_scans_of_one_shape_share_workers_and_a_plan(tmp_path):
    for number, rows in enumerate((17, 17, 12, 17)):
        frames = np.random.default_rng(number).integers(0, 4000, (11, rows, 16), np.uint16)
        np.save(tmp_path / f"{number}.npy", frames)
    (tmp_path / "1.npy").write_bytes(b"no array")
    report = run_scans(tmp_path / "*.npy", of(["to_float", "work"]), tmp_path / "out", workers=2)
    assert [each.state for each in report.scans] == ["done", "failed", "done", "done"]
    plans = {}
    for number in (0, 2, 3):
        folder = tmp_path / "out" / str(number)
        plans[number] = json.loads((folder / "report.json").read_text())["plan"]
        run(tmp_path / f"{number}.npy", of(["to_float", "work"]), tmp_path / f"alone{number}")
        assert content(folder) == content(tmp_path / f"alone{number}")
    assert plans[3].pop("scan") != plans[0].pop("scan")
    assert plans[3] == plans[0]
    assert plans[2]["sections"] != plans[0]["sections"]
