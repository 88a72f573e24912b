"""A beam that changes during a scan is divided out by flats weighted by where they were taken.

Reported situations, each with its source in a public tracker. The right value is the line integral
itself: 0 in air.
"""

from __future__ import annotations

import tracemalloc

import h5py
import numpy as np
import pytest

import maxslices
from maxslices_methods.normalize import dark_flat_field_correction

from .made_scans import counts, frames, line_integrals, write_nxtomo

N = 61
DEGREES = np.linspace(0, 180, N)
STEPS = ["dark_flat_field_correction", "minus_log"]
LOADER = {"method": "standard_tomo"}
DARKS = frames(0.0, seed=2, noise=2)
CLOSE = 4e-3
"""Noise of five flats and the rounding of counts, as attenuation."""


def linear(first, last, n=N):
    """Level of each of n projections between flats just before and just after them."""
    return first + (last - first) * (np.arange(n) + 1) / (n + 1)


def check(scan, line, steps=STEPS, **options):
    got = maxslices.run(scan, steps, device="cpu", **options).result
    assert np.abs(got - line).max() < CLOSE


def decaying(path, last=0.6):
    line = line_integrals(DEGREES)
    data = counts(line, linear(1.0, last))
    parts = [(2, DARKS, 0), (1, frames(1.0), 0), (0, data, DEGREES), (1, frames(last), 180)]
    return write_nxtomo(path, parts), line


def test_flats_before_and_after(tmp_path):
    """Source: mantidproject/mantidimaging #477, flats before and flats after a scan."""
    check(*decaying(tmp_path / "scan.nxs"))


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


def test_every_second_projection_of_the_first_half(tmp_path):
    """Source: tomopy's normalize_nf (tomopy #570): flats count where they lie among all frames."""
    path, line = decaying(tmp_path / "scan.nxs")
    part = {"preview": {"angles": {"start": 10, "stop": 40, "step": 2}}}
    check(path, line[:30:2], [LOADER | {"parameters": part}, *STEPS])


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


def test_bits_do_not_depend_on_blocks_rows_or_workers(tmp_path):
    path, _ = decaying(tmp_path / "scan.nxs")
    whole = maxslices.run(path, STEPS, device="cpu").result
    for block in (1, 7):
        again = maxslices.run(path, STEPS, device="cpu", block=block).result
        np.testing.assert_array_equal(again, whole)
    shared = maxslices.run(path, STEPS, tmp_path / "out", device="cpu", workers=2, block=5)
    with h5py.File(shared.files[-1]) as file:
        np.testing.assert_array_equal(file["entry/data/data"], whole)
    steps = [*STEPS, {"method": "remove_stripe_based_sorting", "parameters": {"size": 1}}]
    report = maxslices.run(path, steps, device="cpu", block=2)
    assert report.plan.sections[0].slice_dim == 1
    np.testing.assert_array_equal(report.result, whole)


def test_flats_that_a_method_changes_stay_apart(tmp_path):
    """A filter of outliers makes one frame of each group of flats."""
    path, line = decaying(tmp_path / "scan.nxs")
    check(path, line, [{"method": "remove_outlier", "parameters": {"dif": 5000}}, *STEPS])


def test_arrays_with_flats_after_the_projections():
    """Source: TomographicImaging/CIL #506, two flats are interpolated between start and end."""
    line = line_integrals(DEGREES)
    scan = maxslices.ArrayScan(
        counts(line, linear(1.0, 0.6)), flats=frames(1.0), flats_after=frames(0.6), darks=DARKS
    )
    check(scan, line)


@maxslices.method("projection", calc_max_slices=lambda s, o, dtype, m, **k: (m // 10**4, dtype))
def divided(data, flats):
    return (data / flats.mean(axis=0)).astype(data.dtype)


@pytest.mark.filterwarnings("ignore:.*both edges change")  # as they do
@pytest.mark.parametrize("layout", ["by another method", "without places", "darks"])
def test_frames_that_change_and_are_averaged_are_reported(tmp_path, layout):
    line = line_integrals(DEGREES)
    data, steps = counts(line, linear(1.0, 0.6)), STEPS
    if layout == "by another method":
        path, steps, text = decaying(tmp_path / "scan.nxs")[0], [divided], "divided uses their mean"
    elif layout == "without places":
        path, text = tmp_path / "scan.h5", "not stored"
        with h5py.File(path, "w") as file:
            file["exchange/data"] = data
            file["exchange/data_white"] = np.concatenate([frames(1.0), frames(0.6)])
            file["exchange/data_dark"] = DARKS
            file["exchange/theta"] = DEGREES
    else:
        text = "darks change by 2.5"
        parts = [(2, DARKS, 0), (1, frames(1.0), 0), (0, data, DEGREES), (2, DARKS + 500, 180)]
        path = write_nxtomo(tmp_path / "scan.nxs", parts)
    with pytest.warns(UserWarning, match=text):
        maxslices.run(path, steps, device="cpu")


def test_a_beam_that_moves_without_a_change_of_its_mean(tmp_path):
    """Its frames have one mean, and the tiles of these differ."""
    line = line_integrals(DEGREES)
    place = np.linspace(-1, 1, 64)
    share = (np.arange(N) + 1)[:, None, None] / (N + 1)
    first, last = (100 + 20000 * (1 + tilt * place) for tilt in (0.1, -0.1))
    beam = first + (last - first) * share - 100
    data = np.rint(100 + beam * np.exp(-line)).astype("u2")
    flats = [np.rint(np.broadcast_to(one, (5, 6, 64))).astype("u2") for one in (first, last)]
    parts = [(2, DARKS, 0), (1, flats[0], 0), (0, data, DEGREES), (1, flats[1], 180)]
    check(write_nxtomo(tmp_path / "scan.nxs", parts), line)


def test_no_more_memory_than_a_mean_takes():
    """The ledger of the mean holds, whether or not flats have weights."""
    rng = np.random.default_rng(0)
    shape, n = (64, 512), 8
    data = rng.integers(200, 900, (n, *shape)).astype("u2")
    flats, darks = (rng.integers(low, low + 90, (6, *shape)).astype("u2") for low in (1000, 0))
    in_time = np.linspace(0, 1, n)
    weights = np.stack([1 - in_time, in_time], 1), np.repeat(np.eye(2) / 3, 3, axis=1)
    peaks = []
    for flat_weights in (None, weights):
        tracemalloc.start()
        dark_flat_field_correction(data, flats, darks, flat_weights=flat_weights)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= peaks[0]


def test_weights_are_the_product_of_both_matrices():
    rng = np.random.default_rng(0)
    data, flats = rng.random((7, 3, 5), "f4"), 1 + rng.random((4, 3, 5), "f4")
    darks = rng.random((2, 3, 5), "f4") / 10
    in_time, members = rng.random((7, 3)), rng.random((3, 4))
    got = dark_flat_field_correction(data, flats, darks, flat_weights=(in_time, members))
    dark = darks.mean(0)
    flat = np.tensordot(in_time @ members, flats - dark, 1)
    np.testing.assert_allclose(got, (data - dark) / flat, rtol=1e-5)
