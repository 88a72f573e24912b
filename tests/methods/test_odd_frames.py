"""Frames that are not flats or darks despite their key are named, and can be omitted.

Reported situations, each with its source in a public tracker.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import maxslices
from maxslices.errors import SourceError
from maxslices.io import parse_loader

from .made_scans import counts, frames, line_integrals, write_nxtomo

DEGREES = np.linspace(0, 180, 31)
STEPS = ["dark_flat_field_correction", "minus_log"]


def scan(path, flats=None, darks=None, change=None):
    flats = frames(1.0, seed=1) if flats is None else flats
    darks = frames(0.0, seed=2, noise=2) if darks is None else darks
    data = counts(line_integrals(DEGREES), np.ones(31))
    if change is not None:
        change(data)
    return write_nxtomo(path, [(2, darks, 0), (1, flats, 0), (0, data, DEGREES)])


def warnings_of(path, steps=STEPS):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        maxslices.run(path, steps, device="cpu")
    return [str(each.message) for each in caught]


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
    """Source: DiamondLightSource/httomo #157, frames that do not match the key, here zeros."""
    stack[2] = 0


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
def test_an_odd_frame_is_named(tmp_path, side, change):
    stacks = {"flats": frames(1.0, seed=1), "darks": frames(0.0, seed=2, noise=2)}
    change(stacks[side])
    messages = warnings_of(scan(tmp_path / "scan.nxs", **stacks))
    assert any(side in text and "frame 2" in text for text in messages)


def shutter_closes(data):
    data[12:15] = frames(0.0, seed=2, noise=2)[:3]


def scan_stops(data):
    """Frames are allocated, and zero, until the camera fills them."""
    data[20:] = 0


def beam_falls(data):
    """Source: TomographicImaging/CIL #506, a beam that decays, here with flats before the scan."""
    beam = np.linspace(1, 0.6, len(data))[:, None, None]
    data[:] = 100 + beam * (data.astype(float) - 100)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (shutter_closes, "3 of 31 checked frames have no beam, from frame 12 to 14"),
        (beam_falls, "both edges change by 39% during the scan"),
        (scan_stops, "11 of 31 checked frames have no beam, from frame 20 to 30"),
    ],
)
def test_projections_without_beam_or_with_another_are_reported(tmp_path, change, expected):
    assert any(expected in text for text in warnings_of(scan(tmp_path / "s.nxs", change=change)))
    assert warnings_of(scan(tmp_path / "whole.nxs")) == []


def test_counts_that_were_not_corrected_are_reported(tmp_path):
    (text,) = warnings_of(scan(tmp_path / "scan.nxs"), steps=["minus_log"])
    assert "minus_log takes transmission" in text
    assert "has counts" in text


def test_saturated_flats_are_reported(tmp_path):
    flats = frames(1.0, seed=1)
    flats[:, :, 3:6] = 4095
    (text,) = warnings_of(scan(tmp_path / "scan.nxs", flats=np.minimum(flats, 4095)))
    assert "of a frame's pixels have the camera's largest value" in text


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


def test_frames_that_differ_by_noise_are_not_named(tmp_path):
    """Noise of photons and of the camera, and a beam that trembles by 0.1 %."""
    rng = np.random.default_rng(3)
    level = 1 + 1e-3 * rng.normal(size=20)
    flats = np.concatenate([frames(one, n=1, seed=i) for i, one in enumerate(level)])
    flats = rng.poisson(flats).astype("u2")
    darks = frames(0.0, n=20, seed=2, noise=2)
    assert not warnings_of(scan(tmp_path / "scan.nxs", flats=flats, darks=darks))


def test_flats_with_the_shutter_closed_after_the_scan_are_named(tmp_path):
    data = counts(line_integrals(DEGREES), np.ones(31))
    parts = [(2, frames(0.0, seed=2, noise=2), 0), (1, frames(1.0), 0), (0, data, DEGREES)]
    path = write_nxtomo(tmp_path / "scan.nxs", [*parts, (1, frames(0.0, n=3, seed=9), 180)])
    messages = warnings_of(path)
    assert [f"flats: frame {i} of 8" in text for i, text in zip((5, 6, 7), messages, strict=True)]


def test_an_odd_flat_does_not_make_groups_differ(tmp_path):
    """Five flats before and five after are alike, but for one: all are averaged, as before."""
    data = counts(line_integrals(DEGREES), np.ones(31))
    flats = frames(1.0, n=10, seed=1)
    flats[7] = 0
    parts = [(1, flats[:5], 0), (0, data, DEGREES), (1, flats[5:], 180)]
    path = write_nxtomo(tmp_path / "scan.nxs", parts)
    with pytest.warns(UserWarning, match="flats: frame 7 of 10"):
        got = maxslices.run(path, STEPS[:1], device="cpu").result
    np.testing.assert_array_equal(got, data.astype("f4") / flats.mean(axis=0, dtype="f4"))


@pytest.mark.parametrize("frames_of", [[0, 1, 3, 4], "all but 2", "all but 2,2"])
def test_frames_by_index_and_by_what_is_left_out(frames_of):
    options, faults = parse_loader({"flats": {"frames": frames_of}})
    assert not faults
    np.testing.assert_array_equal(options.flats.frames.of(5, "flats"), [0, 1, 3, 4])


@pytest.mark.parametrize(
    ("frames_of", "text"),
    [
        ([0, 5], "frames contains 5, and the valid indices are 0 to 4"),
        ("all but 0, 1, 2, 3, 4", "selects none of 5"),
    ],
)
def test_frames_that_are_not_there(frames_of, text):
    options, _ = parse_loader({"flats": {"frames": frames_of}})
    with pytest.raises(SourceError, match=text):
        options.flats.frames.of(5, "flats")


@pytest.mark.parametrize("frames_of", ["2", "all but", [-1], [1.5], {"a": 1}])
def test_frames_that_are_no_choice(frames_of):
    _, faults = parse_loader({"flats": {"frames": frames_of}})
    assert "frames of flats must be a list of indices" in faults[0].text
