"""A beam that changes during a scan is divided out by flats weighted by where they were taken.

Reported situations, each with its source in a public tracker. The right value is the line integral
itself: 0 in air.
"""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import maxslices

from .made_scans import counts, frames, line_integrals, write_nxtomo

N = 61
DEGREES = np.linspace(0, 180, N)
STEPS = ["dark_flat_field_correction", "minus_log"]
LOADER = {"method": "standard_tomo"}
DARKS = frames(0.0, seed=2, noise=2)
CLOSE = 4e-3
"""Noise of five flats and the rounding of counts, as attenuation."""
wrong = pytest.mark.xfail(strict=True, reason="flats before and after are averaged")


def linear(first, last, n=N):
    """Level of each of n projections between flats just before and just after them."""
    return first + (last - first) * (np.arange(n) + 1) / (n + 1)


def check(scan, line, steps=STEPS, **options):
    got = maxslices.run(scan, steps, device="cpu", **options).result
    assert np.abs(got - line).max() < CLOSE


@wrong
def test_flats_before_and_after(tmp_path):
    """Source: mantidproject/mantidimaging #477, flats before and flats after a scan."""
    line = line_integrals(DEGREES)
    data = counts(line, linear(1.0, 0.6))
    parts = [(2, DARKS, 0), (1, frames(1.0), 0), (0, data, DEGREES), (1, frames(0.6), 180)]
    check(write_nxtomo(tmp_path / "scan.nxs", parts), line)


@wrong
def test_flats_throughout_and_darks_at_the_beginning(tmp_path):
    """Source: DiamondLightSource/Savu #436, flats throughout, darks at the beginning alone.

    The machine is refilled after a third: the beam falls, jumps and falls again, and flats are
    taken on either side of the refill.
    """
    line = line_integrals(DEGREES)
    first, second = linear(1.0, 0.8, 20), linear(1.1, 0.7, 41)
    parts = [
        (2, DARKS, 0),
        (1, frames(1.0), 0),
        (0, counts(line[:20], first), DEGREES[:20]),
        (1, frames(0.8), 60),
        (0, counts(line[20:21], second[:1]), DEGREES[20:21]),
        (1, frames(second[0]), 60),
        (0, counts(line[21:], second[1:]), DEGREES[21:]),
        (1, frames(0.7), 180),
    ]
    got = maxslices.run(write_nxtomo(tmp_path / "scan.nxs", parts), STEPS, device="cpu").result
    # The one projection between both sets of the refill lies in the middle of a jump.
    assert np.abs(np.delete(got - line, 20, axis=0)).max() < CLOSE


@wrong
def test_flats_before_and_after_in_data_sets_of_their_own(tmp_path):
    """Source: the SLS's and Sirius' writers, data_white_pre and data_white_post; dxchange's
    read_sls_tomcat. Frames in the middle are between both."""
    line = line_integrals(DEGREES)
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["exchange/data"] = counts(line, linear(1.0, 0.6))
        file["exchange/data_white_pre"] = frames(1.0)
        file["exchange/data_white_post"] = frames(0.6)
        file["exchange/data_dark"] = DARKS
        theta = file.create_dataset("exchange/theta", data=DEGREES)
        theta.attrs["units"] = "degrees"
    check(tmp_path / "scan.h5", line)


@wrong
def test_every_second_projection_of_the_first_half(tmp_path):
    """Source: tomopy's normalize_nf (tomopy #570): flats count where they lie among all frames."""
    line = line_integrals(DEGREES)
    data = counts(line, linear(1.0, 0.6))
    parts = [(2, DARKS, 0), (1, frames(1.0), 0), (0, data, DEGREES), (1, frames(0.6), 180)]
    path = write_nxtomo(tmp_path / "scan.nxs", parts)
    part = {"preview": {"angles": {"start": 10, "stop": 40, "step": 2}}}
    check(path, line[:30:2], [LOADER | {"parameters": part}, *STEPS])


@wrong
def test_beam_current_stored_with_each_frame(tmp_path):
    """Source: DiamondLightSource/Savu #321, NXtomo's control normalises all data; nabu's
    normalize_srcurrent."""
    line = line_integrals(DEGREES)
    level = np.where(np.arange(N) < 25, linear(1.0, 0.7), linear(1.2, 0.9))
    parts = [(2, DARKS, 0), (1, frames(1.0), 0), (0, counts(line, level), DEGREES)]
    current = 200 * np.concatenate([np.ones(10), level])
    path = write_nxtomo(tmp_path / "scan.nxs", parts, current)
    check(path, line, [LOADER | {"parameters": {"beam_current": "auto"}}, *STEPS])


@pytest.mark.parametrize("last", [1.0, 1.0005])
def test_flats_that_differ_by_noise_give_the_bits_of_their_mean(tmp_path, last):
    line = line_integrals(DEGREES)
    flats = frames(1.0, seed=4, noise=60), frames(last, seed=5, noise=60)
    data = counts(line, np.ones(N))
    parts = [(2, DARKS, 0), (1, flats[0], 0), (0, data, DEGREES), (1, flats[1], 180)]
    got = maxslices.run(write_nxtomo(tmp_path / "scan.nxs", parts), STEPS[:1], device="cpu").result
    dark = DARKS.mean(axis=0, dtype="f4")
    signal = np.concatenate(flats).mean(axis=0, dtype="f4") - dark
    np.testing.assert_array_equal(got, (data.astype("f4") - dark) / signal)
