"""Estimators of httomo-backends beside measured peaks, by the adapter of docs/adopting.md.

``docs/scripts/adopting.py`` measured them, on an H200 on 2026-11-28.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path

import pytest

ROWS = json.loads((Path(__file__).parent / "adopting_peaks.json").read_text())
SCRIPT = Path(__file__).parents[2] / "docs" / "scripts" / "adopting.py"
OF_HTTOMO = [row for row in ROWS if row["project"] == "httomo-backends"]


@pytest.fixture(scope="module")
def estimated():
    """Slices that httomo-backends gives for each method, dtype and parameters."""
    functions = "httomo_backends.methods_database.packages.backends.httomolibgpu.supporting_funcs"
    try:
        importlib.import_module(f"{functions}.recon.algorithm")
    except (ImportError, OSError) as error:  # the latter without cuFFT
        pytest.skip(f"httomo-backends with httomolibgpu and cuFFT, on Python 3.12: {error}")
    spec = importlib.util.spec_from_file_location("adopting", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {(m.name, dtype, json.dumps(p)): m for _, m, dtype, _, p in module.httomo_cases()}


@pytest.mark.parametrize("row", OF_HTTOMO, ids=lambda row: f"{row['method']}-{row['dtype']}")
def test_its_estimator_gives_the_slices_that_were_recorded(estimated, row):
    meta = estimated[row["method"], row["dtype"], json.dumps(row["parameters"])]
    slice_dim = meta.slice_dims()[0]
    others = tuple(n for axis, n in enumerate(row["shape"]) if axis != slice_dim)
    n, _ = meta.calc_max_slices(
        slice_dim, others, row["dtype"], row["peak_bytes"], **row["parameters"]
    )
    assert min(n, row["slices"]) == row["estimated_slices"]
