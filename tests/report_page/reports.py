"""Plans and reports as plain data: those of a run, with any numbers and names in them."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np

import maxslices

PLAN = {
    "scan": "scan.nxs: 180x64x256 uint16",
    "budget_bytes": 40_000_000,
    "notes": [],
}
SECTION = {
    "why": "block auto: 32 keep the device busy; all fit",
    "estimated_bytes": 11_000_000,
    "available_bytes": 40_000_000,
    "origin": "scan",
    "destination": "result",
    "kept_bytes": 0,
}
RUN_SECTION = {
    "duration_s": 1.5,
    "measured_bytes": 9_440_000,
    "stages": {"read": {"share": 0.2}, "compute": {"share": 0.7}},
    "idle_share": 0.1,
    "bound_by": "compute",
    "gb_per_s": 0.05,
    "warnings": [],
    "findings": [],
}
REPORT = {
    "duration_s": 2.6,
    "phases_s": {"opening": 0.75},
    "process_bytes": 40_800_000,
    "files": ["out/result.h5"],
}


@cache
def _of_a_run() -> dict[str, Any]:
    """The report of a small run."""
    data = np.ones((180, 64, 256), np.uint16)
    return maxslices.run(data, ["minus_log"], device="cpu", memory="1GB", block=32).to_dict()


def a_plan(section: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A plan with one section, some of its fields changed."""
    made = deepcopy({**_of_a_run()["plan"], **PLAN})
    made["made_for"]["versions"] |= {"maxslices": "0.1.0", "cupy": None}
    made["sections"][0] |= SECTION
    made |= deepcopy(fields)
    made["sections"][0].update(section or {})
    return made


def a_report(
    section: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A report with one section, some of its fields changed."""
    made = deepcopy({**_of_a_run(), **REPORT, **fields, "plan": plan or a_plan()})
    made["sections"][0].update(RUN_SECTION | (section or {}))
    return made


def everywhere(value: Any, text: str) -> Any:
    """The same data with a text added to each text in it, and to each key of names."""
    if isinstance(value, dict):
        return {key: everywhere(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [everywhere(item, text) for item in value]
    return value + text if isinstance(value, str) else value
