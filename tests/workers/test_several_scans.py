"""Several scans share the workers that are started."""

from __future__ import annotations

import numpy as np

from maxslices import run, run_scans
from tests.runner.resumable import content, of


def test_several_scans_share_workers(tmp_path):
    for number, rows in enumerate((17, 17, 12)):
        frames = np.random.default_rng(number).integers(0, 4000, (11, rows, 16), np.uint16)
        np.save(tmp_path / f"{number}.npy", frames)
    (tmp_path / "1.npy").write_bytes(b"no array")
    report = run_scans(tmp_path / "*.npy", of(["to_float", "work"]), tmp_path / "out", workers=2)
    assert [each.state for each in report.scans] == ["done", "failed", "done"]
    for number in (0, 2):
        run(tmp_path / f"{number}.npy", of(["to_float", "work"]), tmp_path / f"alone{number}")
        assert content(tmp_path / "out" / str(number)) == content(tmp_path / f"alone{number}")
