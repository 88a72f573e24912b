"""What a plan says of methods without an estimator that were tried on made-up values alone."""

from __future__ import annotations

import numpy as np
import pytest

import maxslices
from maxslices import registry

SCAN = (1 + np.random.default_rng(0).random((60, 21, 23), np.float32)) * np.linspace(
    1, 30000, 60, dtype=np.float32
)[:, None, None]


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


for _function in (by_largest, saturated_replaced, holes_filled):
    registry.register(_function, pattern="projection", module="tests_of_claims")


@pytest.mark.parametrize("name", ["by_largest", "saturated_replaced"])
def test_equal_blocks_are_claimed_only_of_values_that_were_tried(name, tmp_path, monkeypatch):
    """DiamondLightSource/httomo issues 28 and 97."""
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path))
    plan = maxslices.plan(
        SCAN, [{"method": f"tests_of_claims.{name}"}], device="cpu", memory="50MB"
    )
    notes = " ".join(plan.notes)
    assert "is the same between blocks" not in notes or "made-up" in notes


def test_a_method_without_a_difference_is_said_to_be_tried_on_made_up_values(tmp_path, monkeypatch):
    """A statement names what it was tried on."""
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path))
    plan = maxslices.plan(
        SCAN, [{"method": "tests_of_claims.holes_filled"}], device="cpu", memory="50MB"
    )
    assert "made-up" in " ".join(plan.notes)
