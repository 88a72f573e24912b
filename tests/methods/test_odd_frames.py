"""A flat or a dark that is none is named, and can be left out.

Reported situations, each with its source in a public tracker.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest

import maxslices

from .made_scans import counts, frames, line_integrals, write_nxtomo

DEGREES = np.linspace(0, 180, 31)
STEPS = ["dark_flat_field_correction", "minus_log"]
wrong = pytest.mark.xfail(strict=True, reason="nothing is said of an odd frame")


def scan(path, flats=None, darks=None):
    flats = frames(1.0, seed=1) if flats is None else flats
    darks = frames(0.0, seed=2, noise=2) if darks is None else darks
    data = counts(line_integrals(DEGREES), np.ones(31))
    return write_nxtomo(path, [(2, darks, 0), (1, flats, 0), (0, data, DEGREES)])


def warnings_of(caplog, path, steps=STEPS):
    with caplog.at_level(logging.WARNING):
        maxslices.run(path, steps, device="cpu")
    return [record.getMessage() for record in caplog.records]


def saturated(stack):
    """Source: rzellem/EXOTIC #1349, a dark frame that is pure white, completely saturated."""
    stack[2] = 65535


def with_sample(stack):
    """Source: DiamondLightSource/Savu #646, flats averaged with projections."""
    stack[2] = counts(line_integrals([30.0]), np.ones(1))[0]


def shutter_opens(stack):
    """Source: silx-kit/pyFAI #22, frames far from the mean of their stack are to be masked."""
    stack[2] = 100 + 0.6 * (stack[2].astype(float) - 100)


def dropped(stack):
    """Source: DiamondLightSource/httomo #157, frames that are not what the key says; here zeros."""
    stack[2] = 0


@wrong
@pytest.mark.parametrize(
    ("side", "change"),
    [
        ("darks", saturated),
        ("flats", saturated),
        ("flats", with_sample),
        ("flats", shutter_opens),
        ("flats", dropped),
        ("darks", dropped),
    ],
)
def test_an_odd_frame_is_named(tmp_path, caplog, side, change):
    stacks = {"flats": frames(1.0, seed=1), "darks": frames(0.0, seed=2, noise=2)}
    change(stacks[side])
    said = warnings_of(caplog, scan(tmp_path / "scan.nxs", **stacks))
    assert any(side in text and "frame 2" in text for text in said)


@wrong
@pytest.mark.parametrize("change", [saturated, dropped])
def test_a_frame_that_is_left_out_does_not_count(tmp_path, change):
    flats = frames(1.0, seed=1)
    right = maxslices.run(
        scan(tmp_path / "right.nxs", flats=np.delete(flats, 2, axis=0)), STEPS, device="cpu"
    ).result
    change(flats)
    loader = {"method": "standard_tomo", "parameters": {"flats": {"frames": "all but 2"}}}
    got = maxslices.run(scan(tmp_path / "odd.nxs", flats=flats), [loader, *STEPS], device="cpu")
    np.testing.assert_array_equal(got.result, right)


def test_frames_that_differ_by_noise_are_not_named(tmp_path, caplog):
    """Noise of photons and of the camera, and a beam that trembles by 0.1 %."""
    rng = np.random.default_rng(3)
    level = 1 + 1e-3 * rng.normal(size=20)
    flats = np.concatenate([frames(one, n=1, seed=i) for i, one in enumerate(level)])
    flats = rng.poisson(flats).astype("u2")
    darks = frames(0.0, n=20, seed=2, noise=2)
    assert not warnings_of(caplog, scan(tmp_path / "scan.nxs", flats=flats, darks=darks))
