"""Arguments of the functions of this package, checked and completed from the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..nn_errors import ModelArgumentError


def channel_axis(model: nn.Module, in_channels: int | None) -> tuple[int, ...] | None:
    """Length of the channel axis: as given, or the model's ``in_channels``; () if that is 0.

    None if neither is known.
    """
    found = getattr(model, "in_channels", None) if in_channels is None else in_channels
    if found is None:
        return None
    is_none = type(found) is int and found == 0
    return () if is_none else (positive(found, "in_channels"),)


def dtype_of(model: nn.Module) -> torch.dtype:
    """Dtype of a model's first parameter of floating point; float32 without one."""
    found = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(found, torch.float32)


def divisors_of(
    model: nn.Module, ndim: int, min_divisible: Sequence[int] | None
) -> tuple[int, ...]:
    """Divisor of each axis: as given, or 2 to the power of the model's ``depth``."""
    if min_divisible is None:
        depth = getattr(model, "depth", None)
        return (2 ** int(depth) if depth is not None else 1,) * ndim
    if len(min_divisible) != ndim:
        raise ModelArgumentError(
            f"min_divisible {tuple(min_divisible)} has {len(min_divisible)} numbers, not one for "
            f"each of {ndim} axes"
        )
    return tuple(positive(each, "min_divisible") for each in min_divisible)


def is_shape(item: Any) -> bool:
    """True for a shape, which stands for an input."""
    return isinstance(item, tuple | list) and bool(item) and all(type(n) is int for n in item)


def shape_of(shape: Any, name: str, ndim: int | None = None) -> tuple[int, ...]:
    """Check a shape and make it a tuple."""
    if isinstance(shape, int) or not isinstance(shape, Sequence):
        raise ModelArgumentError(f"{name} is a shape such as (256, 256), not {shape!r}")
    if not shape or (ndim is not None and len(shape) != ndim):
        wanted = f"{ndim} axes" if ndim is not None else "at least one axis"
        raise ModelArgumentError(f"{name} {tuple(shape)} has {len(shape)} axes, not {wanted}")
    return tuple(positive(each, name) for each in shape)


def check_divisible(shape: tuple[int, ...], divisors: tuple[int, ...], name: str) -> None:
    """Check that a patch is a multiple of its divisors."""
    for axis, (size, divisor) in enumerate(zip(shape, divisors, strict=True)):
        if size % divisor:
            raise ModelArgumentError(
                f"{name} {shape}: axis {axis} has {size}, which is no multiple of {divisor}, as "
                f"the model needs (min_divisible or its depth); {size - size % divisor or divisor} "
                f"or {size - size % divisor + divisor} would do"
            )


def positive(number: Any, name: str) -> int:
    """Check that a number is a whole number of at least 1."""
    try:
        whole = int(number)
    except (TypeError, ValueError):
        whole = 0
    if isinstance(number, bool) or whole < 1 or whole != number:
        raise ModelArgumentError(f"{name} is a whole number, at least 1, not {number!r}")
    return whole


def check_safety(safety_factor: float) -> None:
    """Check that a safety factor is above 0 and at most 1."""
    if not 0 < safety_factor <= 1:
        raise ModelArgumentError(
            f"safety_factor is above 0 and at most 1, not {safety_factor!r}: it is the part of the "
            "memory to use"
        )
