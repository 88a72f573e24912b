"""Methods without an estimator: their blocks are compared, and plans use the result."""

import warnings

import numpy as np
import pytest
import scipy.ndimage

import maxslices
from maxslices import registry


def blurred(data, *, sigma: float = 1.0):
    return scipy.ndimage.gaussian_filter(data, sigma)


def changes_at_eleven(data):
    return data * np.float32(1.0 if len(data) > 10 else 1.04)


def plain(data):
    return data * np.float32(2)


def by_largest(data):
    """DiamondLightSource/httomo issue 97: a scale that is to be of the whole, not of a part."""
    largest = float(data.max())
    return data / np.float32(largest if largest > 1 else 1)


def saturated_replaced(data):
    """Counts at the full well of a detector get the median of such counts in the block."""
    full = data > 20000
    return np.where(full, np.float32(np.median(data[full])) if full.any() else 0, data)


def holes_filled(data):
    """cupy issue 3591: what a mask takes, and gives, depends on the data."""
    odd = data < 0.5 * np.float32(data.max() > 2)
    return np.where(odd, np.float32(data.mean()), data * np.float32(1 + odd.any()))


for function in (blurred, changes_at_eleven, plain, by_largest, saturated_replaced, holes_filled):
    registry.register(function, pattern="projection", module="tests_of_blocks")
SCAN = np.random.default_rng(0).random((150, 21, 23), np.float32)


def planned(name, scan=SCAN, **options):
    return maxslices.plan(scan, [{"method": f"tests_of_blocks.{name}"}], device="cpu", **options)


def test_a_missing_halo_is_warned_of_and_in_the_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path))
    with pytest.warns(UserWarning, match="declare halo=4"):
        plan = planned("blurred", memory="7.15MB")
    assert any("declare halo=4" in note for note in plan.notes)
    again = planned("blurred", memory="7.15MB")  # from the record
    assert again.sections[0].steps[0].estimator == "recorded"
    assert any("declare halo=4" in note for note in again.notes)


def test_blocks_that_agree_are_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path))
    plan = planned("changes_at_eleven", memory="7.15MB")
    block = plan.sections[0].block
    assert any("11 slices or more agree" in note for note in plan.notes)
    assert min(block, 150 % block or block) >= 11
    step = {"method": "tests_of_blocks.changes_at_eleven"}
    report = maxslices.run(SCAN, [step], device="cpu", memory="7.15MB")
    np.testing.assert_array_equal(report.result, SCAN)


def test_what_agrees_is_said_and_nothing_warned(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = planned("plain", memory="7.15MB")
    assert any(
        "made-up values give the same result in blocks of 5 slices as in one of 16" in n
        for n in plan.notes
    )


@pytest.mark.parametrize("name", ["by_largest", "saturated_replaced", "holes_filled"])
def test_equal_blocks_are_claimed_of_made_up_values_alone(name, tmp_path, monkeypatch):
    """DiamondLightSource/httomo issues 28 and 97."""
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path))
    bright = (1 + SCAN[:60]) * np.linspace(1, 30000, 60, dtype=np.float32)[:, None, None]
    notes = " ".join(planned(name, bright, memory="50MB").notes)
    assert "made-up" in notes
