"""Channels and divisors of a model's input, found by replays on small inputs.

A replay has no data, so a trial takes only the time of the Python code of one step.
"""

from __future__ import annotations

import torch
from torch import nn

from ..nn_errors import ModelArgumentError
from ..replay import DataDependentError, Spec, TraceError, Workspaces
from ..step.call_inputs import channel_axis
from ..step.model_step import ModelStep

CHANNELS = (1, 3, 4, 2)
"""Channels that are tried for models without convolutions: grey, colour, alpha, and complex."""
DIVISORS = (1, 2, 4, 8, 16, 32, 64)
"""Divisors that are tried: networks of up to six levels that halve each axis."""
LEAST_SIDE = 65
"""Smallest side that is tried. Six levels leave more than one value of it, which norms need."""


def why_not(step: ModelStep, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Reason why one step of the model does not run on an input, or "" if it runs.

    Raises
    ------
    DataDependentError
        If the model reads values, so that no shape can be replayed.
    """
    try:
        step.trace((Spec(shape, dtype),), Workspaces.none(), steps=1)
    except DataDependentError:
        raise
    except (TraceError, ModelArgumentError) as error:
        return str(error)
    return ""


def input_channels(
    step: ModelStep, in_channels: int | None, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[int, ...]:
    """Length of the channel axis: `in_channels`, the model's, or the first that runs.

    Parameters
    ----------
    step : ModelStep
        Step that is replayed with the channels of each convolution, and then with `CHANNELS`.
    in_channels : int or None
        Channels passed by the user.
    shape : tuple of int
        Spatial shape of the trials.
    dtype : torch.dtype
        Dtype of the input.

    Returns
    -------
    tuple of int
        The length, or () if the input has no such axis.

    Raises
    ------
    ModelArgumentError
        If the model does not run with any of them.
    """
    model = step.model
    explicit = channel_axis(model, in_channels)
    if explicit is not None:
        return explicit
    of_convolutions = [
        m.in_channels for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)
    ]
    tried = tuple(dict.fromkeys([*of_convolutions, *CHANNELS]))
    reasons = []
    for n in tried:
        reasons.append(why_not(step, (2, n, *shape), dtype))
        if not reasons[-1]:
            return (n,)
    sizes = "x".join(map(str, shape))
    raise ModelArgumentError(
        f"{type(model).__name__} has no attribute in_channels, and does not run on images of "
        f"{sizes} with {', '.join(map(str, tried))} channels: {reasons[0]}. Pass another size, "
        "the inputs of one sample (--input on the command line), or in_channels (--channels on "
        "the command line), 0 if the input has no channel axis"
    )


def example_of(divisors: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a trial: the first odd multiples of the divisors from `LEAST_SIDE` on."""
    return tuple(divisor * (-(-LEAST_SIDE // divisor) | 1) for divisor in divisors)


def input_divisors(
    step: ModelStep, in_channels: int | None, ndim: int, batch: int, dtype: torch.dtype
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Channel axis, and for each axis the smallest of `DIVISORS` whose odd multiples run.

    Raises
    ------
    ModelArgumentError
        If multiples of all of them fail.
    """
    model = step.model
    explicit = channel_axis(model, in_channels)
    reasons = []
    for divisor in DIVISORS:
        first = example_of((divisor,) * ndim)
        try:
            channels = (
                input_channels(step, in_channels, first, dtype) if explicit is None else explicit
            )
        except ModelArgumentError as error:
            reasons.append(str(error))
            continue
        second = tuple(size + 2 * divisor for size in first)
        trials = (why_not(step, (batch, *channels, *size), dtype) for size in (first, second))
        reason = next(filter(None, trials), "")
        if not reason:
            return channels, (divisor,) * ndim
        reasons.append(reason)
    raise ModelArgumentError(
        f"{type(model).__name__} does not run on multiples of {', '.join(map(str, DIVISORS))}: "
        f"{reasons[0]}. If it takes images of several sizes, pass min_divisible (--divisible), the "
        "divisor of each axis, and in_channels"
    )
