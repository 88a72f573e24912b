"""Largest batch and largest patch that fit, predicted and then verified by real steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ...core.units import parse_bytes
from ..memory_budget import budget_of, capability_of, check_model, device_of
from ..nn_errors import ModelArgumentError
from ..replay import Spec
from ..replay.replay_step import MODES, Mode, StatedState, precision
from ..step.call_inputs import (
    SAFETY_FACTOR,
    CallInputs,
    check_safety,
    divisors_of,
    dtype_of,
    ndim_of,
    positive,
    shape_of,
)
from ..step.model_step import ModelStep, Targets, optimizer_named
from .answers import BatchSize, PatchShape
from .input_trials import example_of, input_channels, input_divisors
from .size_search import MOST, SizeSearch


def max_batch_size(
    model: nn.Module,
    patch_shape: Any,
    in_channels: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    safety_factor: float = SAFETY_FACTOR,
    max_batch_size: int | None = None,
    prediction_function: Callable[..., Any] | str | None = None,
    *,
    memory: str | int | None = None,
    mode: Mode = "inference",
    optimizer: Any = None,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Targets | None = None,
    amp: torch.dtype | bool | None = None,
    keep_output: bool = True,
    accumulate: int = 1,
    step: Callable[..., Any] | None = None,
    optimizer_state_bytes: str | int | None = None,
) -> BatchSize:
    """Largest batch that fits on a device, or on a card that is not present.

    The arguments up to `prediction_function` are those of torch_em's ``compute_max_batch_size``,
    which runs out of memory to find the answer. Here it is predicted from a replay without data,
    and verified by real steps.

    Parameters
    ----------
    model : torch.nn.Module
        Model, which is not changed. Inference is replayed with a copy in eval mode.
    patch_shape : tuple of int, or Spec, or a tuple or mapping of Spec
        Spatial shape of a sample, such as (512, 512) or (64, 128, 128). For a model with several
        inputs, or inputs by keyword: the inputs of one sample, whose first axis is the batch.
    in_channels : int, optional
        Channels of the input, or 0 if it has no channel axis. The default is the model's
        ``in_channels``, or the first number with which it runs.
    device : torch.device or str, optional
        CUDA device, by default that of the model's parameters.
    dtype : torch.dtype, optional
        Dtype of the input, by default that of the model's parameters.
    safety_factor : float
        Part of the memory that may be used, above 0 and at most 1. At least that part of the
        largest batch is returned, and at least 1. With 1, a device also tries larger batches than
        the predicted one, until the largest is known to within one.
    max_batch_size : int, optional
        Upper bound of the search, which is otherwise bounded by the memory. If it is reached, it
        is returned without the factor, with a warning.
    prediction_function : callable, optional
        ``prediction_function(model, input)``, or the name of a method of the model, called in
        place of the model.
    memory : str or int, optional
        Memory of a card, such as "16GB", or its name, such as "RTX 4090". No device is needed then.
        With a device, a limit for it.
    mode : {"inference", "training", "forward"}
        Two forward passes without gradients, two training steps, or a forward pass with gradients.
    optimizer : str, class, callable or torch.optim.Optimizer, optional
        Optimizer of the training: the name of one of torch's, such as "sgd", "adam" or "adagrad",
        "momentum" for SGD with momentum, a class such as ``torch.optim.Adam``, or an optimizer on
        the model's parameters.
    loss : callable, optional
        ``loss(output, *targets)``. The default is the model's own, a scalar ``loss`` in its output,
        or the sum of the output. If the output is a container, a loss of torch takes its "logits",
        or else each tensor directly inside.
    targets : callable, optional
        Function of the input's `Spec` that returns the targets' `Spec`, or a tuple. The default is
        targets like the output, and class numbers for ``CrossEntropyLoss`` and ``NLLLoss``.
    amp : torch.dtype or bool, optional
        Lower precision of ``torch.autocast``; True is float16.
    keep_output : bool
        Whether the last output is kept until the next one exists, as in a loop of
        ``output = model(x)``. False for loops that drop it earlier, such as
        ``value = loss(model(x), y)`` or ``results.append(model(x).cpu())``.
    accumulate : int
        Number of batches whose gradients are accumulated before a step of the optimizer.
    step : callable, optional
        ``step(model, optimizer, *inputs)``, a training step in place of the usual one. It allows
        several models in a ``torch.nn.ModuleDict``, with a dict of their optimizers, and any order
        of forward and backward passes.
    optimizer_state_bytes : str or int, optional
        Memory of the optimizer's state, such as "2GB", in place of an `optimizer` that torch does
        not have.

    Returns
    -------
    BatchSize
        An `int` with the log of the search in its attribute `result`.

    Raises
    ------
    ModelArgumentError
        If an argument is wrong or the model does not accept such a patch. Also a `ValueError`.
    NoDeviceError
        If there is neither a CUDA device nor `memory`. Also a `RuntimeError`.
    TooLargeError
        If a batch of 1 does not fit. Also a `RuntimeError`.
    """
    bound = MOST if max_batch_size is None else positive(max_batch_size, "max_batch_size")
    check_safety(safety_factor)
    cuda_device = device_of(model, device, memory)
    dtype = dtype_of(model) if dtype is None else dtype
    samples = CallInputs.of_samples(patch_shape)
    shape = () if samples is not None else shape_of(patch_shape, "patch_shape")
    whole = make_step(
        model, mode, optimizer, loss, targets, amp, prediction_function, keep_output, accumulate,
        step, optimizer_state_bytes,
    )  # fmt: skip
    names = () if samples is None else samples.names
    whole = replace(whole, capability=capability_of(cuda_device, memory), names=names)
    channels = () if samples is not None else input_channels(whole, in_channels, shape, dtype)
    budget = budget_of(model, cuda_device, memory)
    if samples is None:
        samples = CallInputs((Spec((1, *channels, *shape), dtype),))
    batches = samples
    search = SizeSearch(
        "batch size", whole, budget, lambda size: batches.batch(size[0]), (1,), (bound,)
    )
    log = search.answer(safety_factor)
    largest = log.found
    assert isinstance(largest, int)
    if largest >= bound:
        warnings.warn(
            f"the search reached its bound, max_batch_size={bound}, before the memory's. More may "
            "fit; raise max_batch_size to find out",
            stacklevel=2,
        )
    return BatchSize(largest, log)


compute_max_batch_size = max_batch_size
"""torch_em's name."""


def max_patch_shape(
    model: nn.Module,
    ndim: int | None = None,
    batch_size: int = 1,
    min_divisible: Sequence[int] | None = None,
    in_channels: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    safety_factor: float = SAFETY_FACTOR,
    max_scale_factor: int | None = None,
    prediction_function: Callable[..., Any] | str | None = None,
    *,
    memory: str | int | None = None,
    volume: Sequence[int] | None = None,
    mode: Mode = "inference",
    optimizer: Any = None,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Targets | None = None,
    amp: torch.dtype | bool | None = None,
    keep_output: bool = True,
    accumulate: int = 1,
    optimizer_state_bytes: str | int | None = None,
) -> PatchShape:
    """Largest patch that fits on a device, or on a card that is not present.

    The arguments up to `prediction_function` are those of torch_em's ``compute_max_patch_shape``.
    Shapes are multiples of `min_divisible`, with the same factor for each axis. With `volume`, the
    patch grows equally along all axes as far as it fits, and then along single axes.

    Parameters
    ----------
    model, in_channels, device, dtype, prediction_function, memory
        As for `max_batch_size`.
    ndim : int, optional
        Number of spatial axes, by default that of the model's convolutions.
    batch_size : int
        Number of patches in a batch.
    min_divisible : sequence of int, optional
        Divisor of each axis, which is the smallest patch and the increment. The default is 2 to the
        power of the model's ``depth``, or else the smallest power of 2 whose multiples run.
    safety_factor : float
        Part of the memory that may be used, above 0 and at most 1. At least that part of the
        largest multiple is returned, and at least the smallest patch.
    max_scale_factor : int, optional
        Upper bound of the factor, which is otherwise bounded by the memory. A warning is issued if
        it is reached.
    volume : sequence of int, optional
        Shape of the volume from which patches are cut. An axis stops growing at the first multiple
        that covers it.
    mode, optimizer, loss, targets, amp, keep_output, accumulate, optimizer_state_bytes
        As for `max_batch_size`.

    Returns
    -------
    PatchShape
        A `tuple` of `int` with the log of the search in its attribute `result`.

    Raises
    ------
    ModelArgumentError, NoDeviceError, TooLargeError
        As for `max_batch_size`.
    """
    ndim = ndim_of(model) if ndim is None else positive(ndim, "ndim")
    check_safety(safety_factor)
    bound = MOST if max_scale_factor is None else positive(max_scale_factor, "max_scale_factor")
    cuda_device = device_of(model, device, memory)
    dtype = dtype_of(model) if dtype is None else dtype
    batch = positive(batch_size, "batch_size")
    step = make_step(
        model, mode, optimizer, loss, targets, amp, prediction_function, keep_output, accumulate,
        None, optimizer_state_bytes,
    )  # fmt: skip
    step = replace(step, capability=capability_of(cuda_device, memory))
    if min_divisible is None and not hasattr(model, "depth"):
        channels, divisors = input_divisors(step, in_channels, ndim, batch, dtype)
    else:
        divisors = divisors_of(model, ndim, min_divisible)
        channels = input_channels(step, in_channels, example_of(divisors), dtype)
    budget = budget_of(model, cuda_device, memory)
    whole = None if volume is None else shape_of(volume, "volume", len(divisors))
    ends = tuple(
        size * (bound if whole is None else max(1, -(-whole[axis] // size)))
        for axis, size in enumerate(divisors)
    )
    search = SizeSearch(
        "patch shape", step, budget, lambda size: (Spec((batch, *channels, *size), dtype),),
        divisors, ends, volume is not None,
    )  # fmt: skip
    search.find_smallest()
    log = search.answer(safety_factor)
    largest = log.found
    assert isinstance(largest, tuple)
    if log.at_bound and largest == log.predicted:
        warnings.warn(
            f"the search reached its bound, max_scale_factor={bound}, before the memory's. "
            "More may fit; raise max_scale_factor to find out",
            stacklevel=2,
        )
    return PatchShape(largest, log)


compute_max_patch_shape = max_patch_shape
"""torch_em's name."""


def make_step(
    model: nn.Module,
    mode: Mode,
    optimizer: Any,
    loss: Callable[..., torch.Tensor] | None,
    targets: Targets | None,
    amp: torch.dtype | bool | None,
    prediction_function: Callable[..., Any] | str | None,
    keep_output: bool = True,
    accumulate: int = 1,
    step: Callable[..., Any] | None = None,
    optimizer_state_bytes: str | int | None = None,
) -> ModelStep:
    """Check the arguments of a step and build it."""
    check_model(model)
    if mode not in MODES:
        raise ModelArgumentError(f"mode is one of {', '.join(map(repr, MODES))}, not {mode!r}")
    for_training = {
        "an optimizer": optimizer, "a loss": loss, "a step of its own": step,
        "optimizer_state_bytes": optimizer_state_bytes,
    }  # fmt: skip
    for what in [name for name, value in for_training.items() if value is not None]:
        if mode != "training":
            raise ModelArgumentError(f"{what} goes with mode='training', not with {mode!r}")
    if step is not None and loss is not None:
        raise ModelArgumentError("a step computes its own loss: give step, or loss and targets")
    if optimizer_state_bytes is not None:
        if optimizer is not None:
            raise ModelArgumentError("give an optimizer or optimizer_state_bytes, not both")
        optimizer = partial(StatedState, n_bytes=parse_bytes(optimizer_state_bytes))
    return ModelStep(
        model,
        mode,
        optimizer_named(optimizer),
        loss,
        targets,
        precision(amp),
        prediction_function,
        keep_output=keep_output,
        accumulate=positive(accumulate, "accumulate"),
        step=step,
    )
