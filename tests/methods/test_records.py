"""Recorded peaks of a GPU compared with the current estimators, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from maxslices.core.method_registry import registry
from maxslices.testing.recorded_peaks import read_records, record_id, replay

from .cases import PACKAGE

FOLDER = Path(__file__).parent.parent / "records"
RECORDS = [record for path in sorted(FOLDER.glob("*.json")) for record in read_records(path)]


NEVER_MEASURED = {
    f"maxslices_methods.httomo_names.{name}"
    for name in (
        "FBP2d_astra",
        "FBP3d_tomobar",
        "LPRec3d_tomobar",
        "total_variation_PD",
        "total_variation_ROF",
    )
}
"""Methods whose peaks are not recorded: `fbp` and total variation under other names, with their
estimators."""


@pytest.mark.parametrize("record", RECORDS, ids=record_id)
def test_estimator_agrees_with_the_recorded_peak(record):
    result = replay(record)
    assert result.ok, str(result)


@pytest.mark.skipif(not RECORDS, reason="no peaks are recorded yet")
def test_every_method_is_recorded_at_three_sizes_or_more():
    sizes: dict[str, set[tuple[int, ...]]] = {}
    odd: set[str] = set()
    for record in RECORDS:
        if record["device"] != "cuda":
            continue
        name, shape = record["method"], tuple(record["shape"])
        sizes.setdefault(name, set()).add(shape)
        frame_sides = [n for axis, n in enumerate(shape) if axis != record["slice_dim"]]
        if all(n % 2 for n in frame_sides):
            odd.add(name)
    required = {
        meta.full_name
        for meta in registry
        # What works on the host has its input and its result alone on a GPU.
        if meta.module.startswith(PACKAGE) and not meta.host_only
    }
    missing = {name: len(sizes.get(name, ())) for name in required if len(sizes.get(name, ())) < 3}
    assert set(missing) == NEVER_MEASURED, f"too few sizes recorded: {missing}"
    assert required - odd == NEVER_MEASURED, f"no odd size recorded: {sorted(required - odd)}"
