"""Arguments of a model's call, as users pass them and as a step stores them.

Users pass one input, a tuple of several, or a mapping by keyword. Each may be a container. A step
stores a tuple, whose last items may have names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..nn_errors import ModelArgumentError
from ..replay import Spec
from ..replay.nested import leaves, map_leaves


def channel_axis(model: nn.Module, in_channels: int | None) -> tuple[int, ...] | None:
    """Length of the channel axis: `in_channels`, or the model's attribute.

    It is () if that is 0, and None if neither exists.
    """
    channels = getattr(model, "in_channels", None) if in_channels is None else in_channels
    if channels is None:
        return None
    is_none = type(channels) is int and channels == 0
    return () if is_none else (positive(channels, "in_channels"),)


def dtype_of(model: nn.Module) -> torch.dtype:
    """Dtype of a model's first floating-point parameter, or float32."""
    dtypes = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(dtypes, torch.float32)


def ndim_of(model: nn.Module) -> int:
    """Spatial axes of a model's convolutions.

    Raises
    ------
    ModelArgumentError
        If it has no convolutions, or convolutions of several numbers of axes.
    """
    kinds = nn.modules.conv._ConvNd
    ndims = {len(m.kernel_size) for m in model.modules() if isinstance(m, kinds)}
    if len(ndims) == 1:
        return ndims.pop()
    has = "has no convolutions" if not ndims else f"has convolutions of {sorted(ndims)} axes"
    raise ModelArgumentError(
        f"{type(model).__name__} {has}: pass ndim, the number of spatial axes of a patch (--ndim)"
    )


def divisors_of(
    model: nn.Module, ndim: int, min_divisible: Sequence[int] | None
) -> tuple[int, ...]:
    """Divisor of each axis: `min_divisible`, or 2 to the power of the model's ``depth``."""
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
    """True for a shape, with which users describe an input."""
    return isinstance(item, tuple | list) and bool(item) and all(type(n) is int for n in item)


def shape_of(shape: Any, name: str, ndim: int | None = None) -> tuple[int, ...]:
    """Check a shape and make it a tuple."""
    if isinstance(shape, int) or not isinstance(shape, Sequence):
        raise ModelArgumentError(f"{name} is a shape such as (256, 256), not {shape!r}")
    if not shape or (ndim is not None and len(shape) != ndim):
        wanted = f"{ndim} axes" if ndim is not None else "at least one axis"
        raise ModelArgumentError(f"{name} {tuple(shape)} has {len(shape)} axes, not {wanted}")
    return tuple(positive(each, name) for each in shape)


def positive(number: Any, name: str) -> int:
    """Check that a number is a whole number of at least 1."""
    try:
        whole = int(number)
    except (TypeError, ValueError):
        whole = 0
    if isinstance(number, bool) or whole < 1 or whole != number:
        raise ModelArgumentError(f"{name} is a whole number, at least 1, not {number!r}")
    return whole


SAFETY_FACTOR = 0.9
"""Default part of the memory that is used, as in torch_em."""


def check_safety(safety_factor: float) -> None:
    """Check that a safety factor is above 0 and at most 1."""
    if not 0 < safety_factor <= 1:
        raise ModelArgumentError(
            f"safety_factor is above 0 and at most 1, not {safety_factor!r}: it is the part of the "
            "memory to use"
        )


@dataclass(frozen=True, slots=True)
class CallInputs:
    """Arguments of a call in order, the last of them by keyword."""

    values: tuple[Any, ...]
    names: tuple[str, ...] = ()
    """Keywords of the last values."""

    @classmethod
    def of(cls, inputs: Any) -> CallInputs:
        """Arguments from a shape, Spec or tensor, a tuple of several, or a mapping by keyword.

        Raises
        ------
        ModelArgumentError
            If there is neither a tensor nor a shape among them.
        """
        if isinstance(inputs, cls):
            return inputs
        names: tuple[str, ...] = ()
        values: Sequence[Any]
        if isinstance(inputs, Mapping):
            names, values = tuple(inputs), tuple(inputs.values())
        elif is_shape(inputs) or not isinstance(inputs, tuple | list):
            values = (inputs,)
        else:
            values = inputs
        arguments = tuple(_with_specs(value) for value in values)
        if not any(isinstance(leaf, Spec | torch.Tensor) for leaf in leaves(arguments)):
            raise ModelArgumentError(
                "inputs is a shape such as (4, 1, 256, 256), a Spec, a tensor, a tuple of them, or "
                f"a dict of them by the model's keywords, not {_short(inputs)}"
            )
        return cls(arguments, names)

    @classmethod
    def of_samples(cls, inputs: Any) -> CallInputs | None:
        """Arguments whose first axis is the batch; None for a plain shape, which has none."""
        if isinstance(inputs, cls):
            return cls(inputs.specs, inputs.names)
        is_container = isinstance(inputs, tuple | list) and any(map(is_sized, inputs))
        if not is_container and not isinstance(inputs, Mapping) and not is_sized(inputs):
            return None
        samples = cls.of(inputs)
        flat = [leaf for leaf in leaves(samples.values) if is_sized(leaf)]
        scalars = [leaf for leaf in flat if not leaf.shape]
        if scalars:
            raise ModelArgumentError("each input of a sample has the batch as its first axis")
        return cls(samples.specs, samples.names)

    def batch(self, n: int) -> tuple[Any, ...]:
        """Arguments for a batch of n samples."""

        def resized(item: Any) -> Any:
            return replace(item, shape=(n, *item.shape[1:])) if isinstance(item, Spec) else item

        return tuple(map_leaves(resized, value) for value in self.values)

    @property
    def specs(self) -> tuple[Any, ...]:
        """Values with a `Spec` for each tensor."""
        return tuple(map_leaves(_spec_of, value) for value in self.values)


def _with_specs(value: Any) -> Any:
    """The same with a `Spec` for each shape."""
    if is_shape(value):
        return Spec(tuple(value))
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_with_specs(item) for item in value)
    if type(value) is dict:
        return {name: _with_specs(item) for name, item in value.items()}
    return value


def _spec_of(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return Spec(tuple(item.shape), item.dtype, item.requires_grad)
    return item


def is_sized(item: Any) -> bool:
    """True for a tensor or a `Spec`."""
    return isinstance(item, Spec | torch.Tensor)


class CalledModule(nn.Module):
    """Model that is called with some arguments by keyword, or by a function or method of its own.

    Its modules and parameters are the model's, by the same names.
    """

    def __init__(
        self, model: nn.Module, function: Callable[..., Any] | str | None, names: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.model = model
        self.function = function
        self.names = names

    def forward(self, *arguments: Any) -> Any:
        """Call the model, with the last arguments by keyword."""
        n_unnamed = len(arguments) - len(self.names)
        named = dict(zip(self.names, arguments[n_unnamed:], strict=True))
        if self.function is None:
            return self.model(*arguments[:n_unnamed], **named)
        if isinstance(self.function, str):
            return getattr(self.model, self.function)(*arguments[:n_unnamed], **named)
        return self.function(self.model, *arguments[:n_unnamed], **named)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Modules of the model."""
        yield from self.model.named_modules(memo, prefix, remove_duplicate)


def bind_call(
    model: nn.Module, function: Callable[..., Any] | str | None, names: tuple[str, ...]
) -> nn.Module:
    """Wrap a model so that it takes all arguments in order.

    Raises
    ------
    ModelArgumentError
        If the model has nothing to call. The message lists its own methods.
    """
    if isinstance(function, str) and not callable(getattr(model, function, None)):
        raise ModelArgumentError(
            f"{type(model).__name__} has no method {function!r}{_methods(model)}"
        )
    is_plain = type(model).__call__ is nn.Module.__call__  # a class may have its own
    lacks_forward = is_plain and "_forward_unimplemented" in getattr(
        model.forward, "__qualname__", getattr(model.forward, "__name__", "")
    )
    if function is None and lacks_forward:
        raise ModelArgumentError(
            f"{type(model).__name__} has no forward{_methods(model)}. Pass the method to call as "
            "prediction_function='...' (--call on the command line)"
        )
    return model if function is None and not names else CalledModule(model, function, names)


def _methods(model: nn.Module) -> str:
    own = [
        name
        for kind in type(model).__mro__[: type(model).__mro__.index(nn.Module)]
        for name, item in vars(kind).items()
        if callable(item) and not name.startswith("_") and name != "forward"
    ]
    return f"; its own methods are {', '.join(dict.fromkeys(own))}" if own else ""


def _short(value: Any) -> str:
    """Text of a value for a message of one line."""
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"
