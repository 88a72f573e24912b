"""Removal of all kinds of stripes against algotom, and on stripes of each kind."""

from __future__ import annotations

import numpy as np
import pytest
from algotom.prep import removal

from maxslices_methods.all_stripes import remove_all_stripe


def sinogram(seed=4, n_angles=120, width=160):
    """A smooth sinogram with noise of a hundredth, float32."""
    rng = np.random.default_rng(seed)
    x = np.linspace(-1, 1, width)
    turn = np.linspace(0, np.pi, n_angles)[:, None]
    clean = 2 + np.cos(3 * (x - 0.3 * np.cos(turn))) + 0.5 * np.sin(turn)
    return (clean + rng.normal(0, 0.02, clean.shape)).astype(np.float32)


def spoilt():
    """The sinogram with a dead, a fluctuating, a wide bright and some narrow stripes."""
    rng = np.random.default_rng(7)
    data = sinogram()
    data[:, 40] = 1.0
    data[:, 90] += rng.normal(0, 1, len(data))
    data[:, 110:114] *= 1.3
    data *= 1 + 0.01 * rng.normal(size=data.shape[1]).astype(np.float32)
    return data


@pytest.mark.parametrize("normalize", [False, True])
def test_it_is_algotoms(normalize):
    data = spoilt()
    expected = removal.remove_dead_stripe(data, 3.0, 31, residual=False)
    expected = removal.remove_large_stripe(expected, 3.0, 31, norm=normalize)
    expected = removal.remove_stripe_based_sorting(expected, 11)
    got = remove_all_stripe(data[:, None], la_size=31, sm_size=11, normalize=normalize)[:, 0]
    # Two values of a column that are equal but for rounding may be sorted the other way round.
    assert np.quantile(np.abs(got - expected), 0.999) < 1e-4 * np.ptp(data)


def test_stripes_are_gone():
    got = remove_all_stripe(spoilt()[:, None], la_size=31, sm_size=11)[:, 0]
    clean = sinogram()
    before, after = (np.abs((d - clean).mean(axis=0)) for d in (spoilt(), got))
    assert after[[40, 90, 110, 111, 112, 113]].max() < 0.25 * before[[40, 110, 111, 112]].min()
    assert np.sqrt(np.mean((got - clean) ** 2)) < 0.25 * np.sqrt(np.mean((spoilt() - clean) ** 2))


def test_values_that_are_not_finite_become_zero():
    data = sinogram()
    data[3, 20] = np.nan
    assert np.isfinite(remove_all_stripe(data[:, None])).all()
