"""Reports of sections that were never run."""

from __future__ import annotations

from maxslices.runner import SectionReport
from maxslices.runner.report.run_report import BlockUse

GB = 10**9


def section(**fields):
    known = {
        "methods": ("dark_flat_field_correction", "minus_log"),
        "slice_dim": 0,
        "n_slices": 64,
        "block": 32,
        "smallest_block": 32,
        "n_splits": 0,
        "duration_s": 2.0,
        "estimated_bytes": 4 * GB,
        "measured_bytes": 3 * GB,
        "blocks": (BlockUse(0, 32, "as planned"),),
    }
    return SectionReport(**{**known, **fields})
