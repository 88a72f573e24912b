"""The largest patch: multiples, single axes, volumes and bounds."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from maxslices.core.block_memory import CONTEXT_BYTES
from maxslices.errors import MaxslicesError
from maxslices.nn import TooLargeError, max_batch_size, max_patch_shape
from maxslices.nn.replay import Spec, replay

from .networks import Small

LIMIT = 200 * 10**6
MEMORY = CONTEXT_BYTES + LIMIT


def fits(shape, model=None):
    model = (model or Small(len(shape))).eval()
    return replay(model, Spec((1, 1, *shape)), steps=2).fits(LIMIT)


@pytest.mark.parametrize("ndim", [2, 3])
def test_the_largest_multiple_fits_and_the_next_does_not(ndim):
    shape = max_patch_shape(
        Small(ndim),
        ndim,
        min_divisible=(8,) * ndim,
        memory=MEMORY,
        safety_factor=1,
        max_scale_factor=999,
    )
    assert len(set(shape)) == 1
    assert shape[0] % 8 == 0
    assert fits(shape)
    assert not fits(tuple(n + 8 for n in shape))


def test_the_depth_of_the_model_gives_the_divisor():
    shape = max_patch_shape(Small(3), 3, memory=MEMORY, safety_factor=1)
    assert shape[0] % 2 == 0
    assert not fits(tuple(n + 2 for n in shape))


def test_a_factor_is_of_the_memory_and_does_not_halve_a_small_multiple():
    whole = max_patch_shape(Small(3), 3, memory=MEMORY, safety_factor=1)
    factor = max_patch_shape(Small(3), 3, memory=MEMORY)
    assert math.prod(factor) > 0.8 * math.prod(whole)
    assert factor[0] >= int(0.9 * whole[0] / 2) * 2


def test_axes_that_grow_alone_make_it_larger():
    equal = max_patch_shape(Small(3), 3, min_divisible=(8, 8, 8), memory=MEMORY, safety_factor=1)
    free = max_patch_shape(
        Small(3), 3, min_divisible=(8, 8, 8), memory=MEMORY, safety_factor=1, volume=(999, 999, 999)
    )
    assert math.prod(free) > math.prod(equal)
    assert all(n % 8 == 0 for n in free)
    assert fits(free)
    assert not any(
        fits(tuple(n + 8 * (axis == grown) for axis, n in enumerate(free))) for grown in range(3)
    )


def test_a_patch_stays_within_the_volume():
    shape = max_patch_shape(Small(3), 3, memory=MEMORY, volume=(15, 1000, 1000))
    assert shape[0] == 16
    assert shape[1] > 64
    small = max_patch_shape(Small(3), 3, memory=MEMORY, volume=(15, 33, 20))
    assert small == (16, 34, 20)


def test_training_begins_where_norms_have_more_than_one_value():
    shape = max_patch_shape(Small(3), 3, memory=MEMORY, mode="training", optimizer="adam")
    assert shape[0] > 8


def test_the_bound_is_reached_with_a_warning():
    with pytest.warns(UserWarning, match="max_scale_factor=4"):
        shape = max_patch_shape(Small(2), 2, memory=MEMORY, max_scale_factor=4)
    assert shape == (8, 8)


def test_the_answer_is_a_tuple_with_the_log_of_its_search():
    shape = max_patch_shape(Small(2), 2, memory=MEMORY, min_divisible=(64, 64))
    assert isinstance(shape, tuple)
    assert (1, 1, *shape)[2:] == shape
    assert f"Patch shape {shape[0]}x{shape[1]} for inference" in str(shape.result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_divisible": (8,)}, "one for each of 3 axes"),
        ({"min_divisible": (8, 8, 0)}, "at least 1, not 0"),
        ({"volume": (10, 10)}, "has 2 axes, not 3 axes"),
        ({"batch_size": 0}, "batch_size is a whole number"),
        ({"in_channels": 2}, "cannot take 1x2x2x2x2"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(MaxslicesError, match=message):
        max_patch_shape(Small(3), 3, memory=MEMORY, **options)


def test_the_smallest_that_does_not_fit_is_an_error():
    with pytest.raises(TooLargeError, match="512x512x512, the smallest, does not fit"):
        max_patch_shape(Small(3), 3, min_divisible=(512, 512, 512), memory=MEMORY)


def test_the_smallest_patch_is_found_by_trying():
    valid = torch.nn.Sequential(*(torch.nn.Conv2d(1, 1, 3) for _ in range(5)))
    with pytest.warns(UserWarning, match="max_scale_factor=12"):
        shape = max_patch_shape(valid, 2, memory=MEMORY, max_scale_factor=12)
    assert shape == (12, 12)


def test_a_model_that_no_patch_fits_is_an_error_with_advice():
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(224 * 224, 2))
    with pytest.raises(
        MaxslicesError,
        match=r"cannot take 2x4225.* If it takes images of several sizes, pass min_div",
    ):
        max_patch_shape(flat, 2, memory=MEMORY)
    with pytest.raises(MaxslicesError, match=r"patches of 1x1, 2x2, .* do not run\. .*--divisible"):
        max_patch_shape(flat, 2, min_divisible=(1, 1), in_channels=1, memory=MEMORY)


class Levels(torch.nn.Module):
    """Three levels that say neither their depth nor their channels."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.down = torch.nn.ModuleList([torch.nn.Conv2d(4, 4, 2, stride=2) for _ in range(3)])
        self.up = torch.nn.ModuleList([torch.nn.ConvTranspose2d(4, 4, 2, 2) for _ in range(3)])

    def forward(self, x):
        kept = [self.first(x)]
        for layer in self.down:
            kept.append(layer(kept[-1]))
        x = kept.pop()
        for layer in self.up:
            x = layer(x) + kept.pop()
        return x


def test_channels_and_divisors_are_found_by_trying():
    shape = max_patch_shape(Levels(), 2, memory=MEMORY, safety_factor=1)
    assert shape[0] % 8 == 0
    assert shape.result.allocated_bytes > 0.8 * LIMIT
    assert max_batch_size(Levels(), (64, 64), memory=MEMORY) > 1
    with pytest.raises(MaxslicesError, match="does not run on images of 63x64 with 3, 4, 1"):
        max_batch_size(Levels(), (63, 64), memory=MEMORY)


def test_the_search_goes_up_to_the_memory():
    shape = max_patch_shape(Small(2), 2, memory=CONTEXT_BYTES + 10**10, safety_factor=1)
    assert shape[0] > 128 * 2
    assert shape.result.allocated_bytes > 0.8 * 10**10  # the rest lies between blocks
    assert not shape.result.at_bound
