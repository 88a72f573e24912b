"""Plans and reports as plain data, with any names in them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

STEP: dict[str, Any] = {
    "index": 0,
    "method": "lab.methods.minus_log",
    "parameters": {},
    "input": {"shape": [180, 64, 256], "dtype": "uint16"},
    "output": {"shape": [180, 64, 256], "dtype": "float32"},
    "estimated_bytes": 4_060_000,
    "estimator": "declared",
    "planned_values": {},
}
SECTION: dict[str, Any] = {
    "steps": [STEP],
    "slice_dim": 0,
    "n_slices": 180,
    "halo": [0, 0],
    "block": 32,
    "multiple": 1,
    "max_block": 180,
    "why": "block auto: 32 keep it busy; all fit",
    "limiting_step": 0,
    "side_bytes": 0,
    "estimated_bytes": 11_000_000,
    "available_bytes": 40_000_000,
    "host_bytes": 11_000_000,
    "stored_bytes": 0,
    "origin": "scan",
    "destination": "result",
    "kept_bytes": 0,
    "overlaps": True,
    "on_blocks": True,
    "n_blocks": 6,
    "limited_by": "minus_log",
}
PLAN: dict[str, Any] = {
    "scan": "scan.nxs: 180x64x256 uint16",
    "device": "cpu",
    "budget_bytes": 40_000_000,
    "reserved_bytes": 0,
    "host_budget_bytes": 40_000_000,
    "sections": [SECTION],
    "scratch_bytes": 0,
    "result_bytes": 11_800_000,
    "notes": [],
    "made_for": {
        "scan": {"projections": "180x64x256 uint16"},
        "scan_in_memory": False,
        "pipeline": [{}, {"method": "lab.methods.minus_log", "id": None, "side_outputs": {}}],
        "device": "cpu",
        "n_cores": 2,
        "versions": {"maxslices": "0.1.0", "cupy": None},
    },
    "estimated_bytes": 11_000_000,
}
RUN_SECTION: dict[str, Any] = {
    "methods": ["minus_log"],
    "slice_dim": 0,
    "n_slices": 180,
    "block": 32,
    "smallest_block": 32,
    "n_splits": 0,
    "duration_s": 1.5,
    "estimated_bytes": 11_000_000,
    "measured_bytes": 9_440_000,
    "stages": {"read": {"share": 0.2}, "compute": {"share": 0.7}},
    "idle_share": 0.1,
    "bound_by": "compute",
    "blocks": [{"first_slice": 0, "block": 32, "why": "chosen"}],
    "notes": [],
    "is_earlier": False,
    "warnings": [],
    "findings": [],
    "slices_per_s": 120.0,
    "ratio": 0.86,
    "gb_per_s": 0.05,
}
REPORT: dict[str, Any] = {
    "device": "cpu",
    "duration_s": 2.6,
    "phases_s": {"opening": 0.75},
    "process_bytes": 40_800_000,
    "sections": [RUN_SECTION],
    "side_results": {},
    "files": ["out/result.h5"],
    "provenance": None,
    "records": ["out/report.html"],
    "plan": PLAN,
}


def a_plan(section: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A plan with one section, some of its fields changed."""
    made = deepcopy({**PLAN, **fields})
    made["sections"][0].update(section or {})
    return made


def a_report(
    section: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A report with one section, some of its fields changed."""
    made = deepcopy({**REPORT, **fields, "plan": plan or PLAN})
    made["sections"][0].update(section or {})
    return made


def everywhere(value: Any, text: str) -> Any:
    """The same data with a text added to each text in it, and to each key of names."""
    if isinstance(value, dict):
        return {key: everywhere(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [everywhere(item, text) for item in value]
    return value + text if isinstance(value, str) else value
