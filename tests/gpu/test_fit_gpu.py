"""Slices that do not fit a GPU: in tiles, on the host, flats and darks on the host."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices import run
from maxslices.io.scans.array_source import ArrayScan

pytestmark = pytest.mark.gpu
pytest.importorskip("maxslices_methods")

SHAPE = (24, 700, 1100)
TV = {
    "method": "total_variation_pd",
    "parameters": {"iterations": 5, "regularisation_parameter": 0.3},
}


def source(n_frames=16):
    rng = np.random.default_rng(6)
    scan = rng.integers(1000, 60000, SHAPE, np.uint16)
    flats = rng.integers(50000, 65000, (n_frames, *SHAPE[1:]), np.uint16)
    darks = rng.integers(0, 300, (n_frames, *SHAPE[1:]), np.uint16)
    return ArrayScan(scan, flats=flats, darks=darks, angles=np.linspace(0, 3, SHAPE[0]))


def both(steps, share, block=1):
    """Run with enough memory, and with a share of what one slice needs."""
    roomy = run(source(), steps, device="cuda", memory="8GB", block=block)
    reserved = roomy.plan.reserved_bytes
    largest = max(section.estimated_bytes for section in roomy.plan.sections)
    memory = reserved + int(share * largest)
    return roomy, run(source(), steps, device="cuda", memory=memory, fit="auto")


def check(report):
    for section in report.sections:
        print(section.notes, section.estimated_bytes, section.measured_bytes, section.duration_s)
        assert section.n_splits == 0
        assert section.measured_bytes <= section.estimated_bytes


def test_tiles_give_the_same_bits():
    steps = ["dark_flat_field_correction", "minus_log", TV]
    roomy, fitted = both(steps, 0.75)
    (section,) = fitted.plan.sections
    assert [step.tile is not None for step in section.steps][-1]
    np.testing.assert_array_equal(fitted.result, roomy.result)
    check(fitted)


def test_flats_and_darks_on_the_host():
    roomy, fitted = both(["dark_flat_field_correction", "minus_log"], 0.6)
    (section,) = fitted.plan.sections
    assert section.side_on_host
    np.testing.assert_array_equal(fitted.result, roomy.result)
    check(fitted)


def test_on_the_host():
    steps = ["minus_log", {"method": "paganin_filter"}]
    roomy, fitted = both(steps, 0.6)
    assert any(step.on_host for section in fitted.plan.sections for step in section.steps)
    np.testing.assert_allclose(fitted.result, roomy.result, rtol=1e-4, atol=1e-4)
    check(fitted)
