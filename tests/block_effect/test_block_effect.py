"""Halos that are found, and results that depend on the block."""

import numpy as np
import pytest
import scipy.ndimage

from maxslices import Registry, registry
from maxslices.block_effect import compare_blocks as module
from maxslices.block_effect.compare_blocks import call_times_s, compare_blocks, study_blocks
from maxslices.block_effect.effect import BlockEffect
from maxslices.block_effect.find_halo import Reach, find_halo
from maxslices.devices import select_backend
from maxslices.errors import UsageError
from maxslices.estimate import ModelRequest
from maxslices.system.plain_records import from_plain, to_plain
from maxslices.testing import find_halo as halo_of_method
from maxslices.trial.trial import Trial


def blurred(data, *, sigma: float = 1.0):
    return scipy.ndimage.gaussian_filter(data, sigma)


def forward(data):
    """Difference to the slice after the next."""
    result = data.copy()
    result[:-2] -= data[2:]
    return result


def alone(data):
    return data * 2


def normalised(data):
    return data / data.max()


def changes_at_eleven(data):
    return data * (1.0 if len(data) > 10 else 1.04)


def per_parity(data):
    return data + len(data) % 2


def in_fours(data):
    """Four slices at a time share their mean. A remainder at the end does not."""
    result = data.copy()
    for i in range(0, len(data) - 3, 4):
        result[i : i + 4] -= data[i : i + 4].mean()
    return result


def in_pairs(data):
    """Real and imaginary part of a complex number leak into each other."""
    result = data.copy()
    result[0:-1:2] += 0.1 * data[1::2]
    return result


def random(data):
    return data + np.random.default_rng().random(data.shape, np.float32)


def mean_image(data):
    return data.mean(0)


def trial_of(function, slice_dim=0, pattern="all", dtype="float32", **declaration):
    parameters = declaration.pop("parameters", {})
    meta = Registry().register(function, pattern=pattern, **declaration)
    backend = select_backend("cpu")

    def trial(n_slices):
        dims, kind = (13, 17), np.dtype(dtype)
        return Trial(meta, slice_dim, dims, kind, backend, parameters, total_slices=n_slices)

    return trial


@pytest.mark.parametrize("slice_dim", [0, 1])
@pytest.mark.parametrize(
    "function, parameters, reach",
    [
        (blurred, {}, Reach((4, 4), 33)),
        (blurred, {"sigma": 0.5}, Reach((2, 2), 9)),
        (blurred, {"sigma": 5.0}, Reach((20, 20), 129)),
        (alone, {}, Reach((0, 0), 9)),
        (normalised, {}, Reach(None, 129)),
    ],
)
def test_a_halo_is_found(function, parameters, reach, slice_dim):
    trial = trial_of(function, slice_dim, parameters=parameters)
    assert find_halo(trial, 200) == reach


def test_a_halo_of_one_side():
    assert find_halo(trial_of(forward), 200) == Reach((0, 2), 9)


def test_no_halo_is_found_of_what_is_random_or_no_block():
    assert find_halo(trial_of(random), 200) is None
    assert find_halo(trial_of(mean_image), 200) is None


def compared(trial):
    return compare_blocks(trial(16), halo_trial=trial, most_slices=200)


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_a_missing_halo_is_proposed(dtype):
    effect = compared(trial_of(blurred, dtype=dtype))
    assert effect.halo == (4, 4)
    assert effect.difference > 0.05
    assert not effect.depends
    assert "declare halo=4" in str(effect)


def test_a_declared_halo_agrees():
    effect = compared(trial_of(blurred, halo=4))
    assert effect.difference == 0
    assert "the same result" in str(effect)


def test_a_halo_that_is_too_small_is_widened():
    assert compared(trial_of(blurred, halo=(4, 1))).halo == (4, 4)


def test_a_limit_of_the_method_is_found():
    effect = compared(trial_of(changes_at_eleven))
    assert effect.agree_from == effect.least_block == 11
    assert effect.difference == pytest.approx(0.04, rel=0.2)
    assert "blocks of 11 slices or more agree" in str(effect)


def test_a_result_that_scales_by_its_block_agrees_with_no_other():
    effect = compared(trial_of(per_parity))
    assert effect.depends
    assert (effect.agree_from, effect.least_block) == (None, 1)


@pytest.mark.parametrize("function, multiple", [(in_pairs, 2), (in_fours, 4)])
def test_slices_that_are_worked_on_together_are_found(function, multiple):
    effect = compared(trial_of(function))
    assert (effect.agree_from, effect.multiple, effect.block_multiple) == (multiple,) * 3
    assert f"blocks of a multiple of {multiple} slices agree" in str(effect)
    assert from_plain(BlockEffect, to_plain(effect), "effect") == effect


def test_what_is_random_is_said_to_be():
    effect = compared(trial_of(random))
    assert not effect.is_repeatable
    assert not effect.depends
    assert "from call to call" in str(effect)


def test_what_returns_no_block_is_not_compared():
    assert compared(trial_of(mean_image)) is None


def test_a_comparison_survives_json():
    effect = compared(trial_of(blurred))
    assert from_plain(BlockEffect, to_plain(effect), "effect") == effect


def test_the_halo_of_a_method_for_its_author():
    meta = Registry().register(blurred, pattern="all")
    reach = halo_of_method(meta, device="cpu", slice_dim=1, sigma=0.5)
    assert reach.halo == (2, 2)
    assert str(reach) == "2 slices before and 2 after"
    with pytest.raises(UsageError, match="differs from call to call"):
        halo_of_method(Registry().register(random, pattern="all"), device="cpu")


def test_calls_are_timed_as_they_are_in_a_run(monkeypatch):
    """What a first call with so many slices does, such as making FFT plans, does not count."""
    now_s, planned_for = [0.0], [0]

    def method(data):
        now_s[0] += 1.0 + 0.5 * len(data) + (9.0 if planned_for[0] != len(data) else 0.0)
        planned_for[0] = len(data)
        return data * 2

    monkeypatch.setattr(module.time, "perf_counter", lambda: now_s[0])
    assert call_times_s(trial_of(method)(16), 5, 16) == pytest.approx((1.0, 0.5))
    effect = from_plain(BlockEffect, to_plain(BlockEffect(16, 5, 0.0, pace_s=(1, 0.5))), "effect")
    assert effect.pace_s == (1.0, 0.5)


@pytest.mark.parametrize(
    ("total_slices", "pace_s", "expected"),
    [
        (2048, (60e-3, 6.7e-3), BlockEffect),  # 0.7 of 14 s: LPRec3d_tomobar
        (512, (60e-3, 6.7e-3), str),
        (512, (20e-3, 5e-3), BlockEffect),  # 0.4 s, of any scan
        (10**6, (1.0, 0.2), str),  # 15 s
    ],
)
def test_the_time_of_a_comparison_is_in_proportion_to_the_scans(total_slices, pace_s, expected):
    request = ModelRequest(
        registry.get("minus_log"), 0, (8, 9), np.dtype("float32"), {}, total_slices
    )
    backend = select_backend("cpu")
    effect = study_blocks(request, backend, pace_s=pace_s, fitting_slices=10**6, side={})
    assert isinstance(effect, expected)


def divides_by_zero(data):
    with np.errstate(divide="ignore"):
        return 1 / np.where(np.arange(data.shape[2]) == 0, 0, data) + forward(data)


def test_the_halo_of_a_method_whose_result_has_infinite_values():
    declared = Registry().register(divides_by_zero, pattern="projection")
    assert halo_of_method(declared, device="cpu").halo == (0, 2)
