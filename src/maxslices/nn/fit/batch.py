"""Largest batch that fits, predicted and then verified by real steps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ...core.units import format_bytes, parse_bytes
from ...errors import EstimatorError
from ..memory_budget import MemoryBudget, budget_of, capability_of, check_model, device_of
from ..nn_errors import ModelArgumentError, TooLargeError
from ..replay import Spec, StepFamily, TraceError, Workspaces
from ..replay.measure_workspaces import measured_workspaces
from ..replay.replay_step import MODES, Mode, StatedState
from ..step.call_inputs import SAFETY_FACTOR, CallInputs, check_safety, dtype_of, positive, shape_of
from ..step.layer_state import ResettingStep
from ..step.model_step import ModelStep, Targets, optimizer_named, precision
from .answers import BatchSize, SearchLog, VerifiedStep
from .input_trials import input_channels
from .real_step import verified_step

ROUNDS = 4
"""Maximum number of batch sizes at which workspaces are measured. Each size is predicted with
the workspaces measured so far; cuDNN changes kernels with the batch size (for ViT-B/16
between 192 and 224 images on an H200), so the prediction may move each time."""
MOST = 2**20
"""Largest batch that is searched: beyond it a step does not grow with its batch."""
NEAR = 2
"""A larger batch that did not run ends the search if one that is smaller by at most this ran."""
STEP_DOWN = 0.005
"""Part of the limit given up when a step that was predicted to fit runs out of memory; twice as
much each time that it happens again. For VGG16-BN, ResNet50 and ViT-B/16 on an H200, such steps had
been predicted to leave 3 to 18 MiB; of ResNet50 262 images in 24 GB did not run, and 261 did."""


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
    margin: str | int | None = None,
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

    The arguments up to `prediction_function` are those of torch_em's
    ``compute_max_batch_size``, which finds the answer by running out of memory. Here it is
    predicted from a replay without data, and then verified by real steps.

    Parameters
    ----------
    model : torch.nn.Module
        Model, which is not changed; inference is replayed with a copy in eval mode.
    patch_shape : tuple of int, or Spec, or a tuple or mapping of Spec
        Spatial shape of a sample, such as (512, 512) or (64, 128, 128). Of a model with several
        inputs, or inputs by keyword: those of one sample, whose first axis is the batch.
    in_channels : int, optional
        Channels of the input; by default the model's ``in_channels``, or those with which it is
        found to run; 0 if it has no channel axis.
    device : torch.device or str, optional
        CUDA device; by default that of the model's parameters.
    dtype : torch.dtype, optional
        Dtype of the input; by default that of the model's parameters.
    safety_factor : float
        Part of the memory that may be used, above 0 and at most 1. At least that part of the
        largest batch is returned, and at least 1.
    max_batch_size : int, optional
        Upper bound of the search, which else goes up to the memory. If it is reached, it is
        returned without the factor, with a warning.
    prediction_function : callable, optional
        ``prediction_function(model, input)``, or the name of a method of the model, called in
        place of the model.
    memory : str or int, optional
        Memory of a card, such as "16GB", or its name, such as "RTX 4090"; no device is needed
        then. With a device, its limit.
    margin : str or int, optional
        Memory to leave free, such as "500MB" or 0, in place of the factor. On a device larger
        batches than the predicted one are then tried too, until the largest is known to within
        one.
    mode : {"inference", "training", "forward"}
        Two forward passes without gradients, two training steps, or a forward pass with gradients.
    optimizer : str, class, callable or torch.optim.Optimizer, optional
        Optimizer of the training: the name of one of torch's, such as "sgd", "adam" or "adagrad",
        "momentum" for SGD with momentum, a class such as ``torch.optim.Adam``, or an optimizer on
        the model's parameters.
    loss : callable, optional
        ``loss(output, *targets)``; by default the model's own, a scalar ``loss`` in its output,
        else the sum of the output. Of an output that is a container, a loss of torch takes the
        "logits", or else each tensor right inside.
    targets : callable, optional
        Function of the input's `Spec` that returns the targets' `Spec`, or a tuple. By default
        targets are like the output; class numbers for ``CrossEntropyLoss`` and ``NLLLoss``.
    amp : torch.dtype or bool, optional
        Lower precision of ``torch.autocast``; True is float16.
    keep_output : bool
        Whether a loop keeps its last output beside the next, as ``output = model(x)`` does;
        False for one that drops it before, as ``value = loss(model(x), y)`` or
        ``results.append(model(x).cpu())`` do.
    accumulate : int
        Forward and backward passes, each of a batch, whose gradients are added before a step of the
        optimizer.
    step : callable, optional
        ``step(model, optimizer, *inputs)``, a step of training in place of the usual one: for
        several models in a ``torch.nn.ModuleDict``, with an optimizer for each in a dict, or for
        any other order of forward and backward passes.
    optimizer_state_bytes : str or int, optional
        Memory of the state of an optimizer that is not known, such as "2GB", in place of
        `optimizer`.

    Returns
    -------
    BatchSize
        An `int`; its `result` is the log of the search.

    Raises
    ------
    ModelArgumentError
        If an argument is wrong or the model does not accept such a patch; a `ValueError` too.
    NoDeviceError
        If there is neither a CUDA device nor `memory`; a `RuntimeError` too.
    TooLargeError
        If a batch of 1 does not fit; a `RuntimeError` too.
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

    def inputs(n: int) -> tuple[Any, ...]:
        return (Spec((n, *channels, *shape), dtype),) if samples is None else samples.batch(n)

    sample = "a batch of 1" if samples is not None else f"a batch of 1 of {shape}"

    began = time.perf_counter()
    try:
        family = StepFamily(lambda n: whole.trace(inputs(n), Workspaces.allowance()), most=bound)
        family, calibration_s = _measured(family, budget, bound)
        predicted = family.largest(budget.limit_bytes, bound)
    except (ModelArgumentError, TraceError) as error:
        if _is_replayed(whole, inputs(1)):
            kind = type(error)
            raise kind(f"{error}; if it takes no larger batch, pass max_batch_size") from error
        raise _with_hint(error, model, shape) from error
    if not predicted:
        raise too_large(sample, family.needed_bytes(1), budget)
    at_bound = predicted >= bound
    kept = budget.limit_bytes - (0 if margin is None else margin_bytes(margin))
    if at_bound and margin is None:
        asked = predicted
    elif margin is not None:
        asked = family.largest(kept, bound) if kept > 0 else 0
        if not asked:
            raise too_large(sample, family.needed_bytes(1), budget, margin_bytes(margin))
    else:
        asked = max(
            1,
            int(predicted * safety_factor),
            family.largest(int(budget.limit_bytes * safety_factor), bound),
        )
        # The allocator's fragmentation differs from one batch size to the next.
        while asked < predicted and not family.fits(asked, budget.limit_bytes):
            asked += 1
    search = SearchLog(
        "batch size",
        mode,
        budget.limit_bytes,
        budget.origin,
        predicted,
        asked,
        family.allocated_bytes(asked),
        (),
        family.workspaces.origin,
        time.perf_counter() - began - calibration_s,
        calibration_s,
        at_bound,
        (*family.notes, *_gap(family, asked, budget.limit_bytes)),
        safety_factor if margin is None and not at_bound else 1.0,
    )
    most = asked
    if margin is not None:
        budget = replace(budget, limit_bytes=kept)
        most = min(bound, 2 * asked)
    found, search = _verified(search, whole, budget, family, inputs, most)
    if found >= bound:
        warnings.warn(
            f"the search reached its bound, max_batch_size={bound}, before the memory's: more may "
            "fit; raise max_batch_size to know",
            stacklevel=2,
        )
    return BatchSize(found, search)


compute_max_batch_size = max_batch_size
"""torch_em's name."""


def _verified(
    search: SearchLog,
    step: ModelStep,
    budget: MemoryBudget,
    family: StepFamily,
    inputs: Callable[[int], tuple[Any, ...]],
    most: int,
) -> tuple[int, SearchLog]:
    """Run the step with smaller and smaller batches until one runs, then between those.

    Parameters
    ----------
    budget : MemoryBudget
        Memory that the real steps may take.
    most : int
        Largest batch to try, which may be larger than the one asked for.
    """
    n = search.asked
    assert isinstance(n, int)
    if budget.device is None:
        return n, search
    device, limit_bytes = budget.device, budget.limit_bytes
    tried: list[VerifiedStep] = []

    def runs(n: int) -> bool:
        tried.append(verified_step(step, n, inputs(n), device, limit_bytes))
        return tried[-1].fits

    part, step_down, failed = 1.0, STEP_DOWN, None
    while not runs(n):
        part, step_down, failed = part - step_down, 2 * step_down, n
        if n == 1 or part <= 0:
            raise too_large("a batch of 1", family.allocated_bytes(1), budget)
        n = max(1, min(n - 1, family.largest(int(budget.limit_bytes * part), n)))
    n = _largest_tried(runs, n, failed, most)
    return n, replace(search, tried=tuple(tried))


def _largest_tried(runs: Callable[[int], bool], ran: int, failed: int | None, most: int) -> int:
    """Largest number up to `most` that runs, to within one, from one that ran.

    Parameters
    ----------
    failed : int, optional
        A larger number that did not run.
    """
    apart = NEAR
    while failed is None and ran < most:
        n = min(ran + apart, most)
        if runs(n):
            ran, apart = n, 2 * apart
        else:
            failed = n
    while failed is not None and failed - ran > NEAR:
        middle = (ran + failed) // 2
        ran, failed = (middle, failed) if runs(middle) else (ran, middle)
    return ran


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
    given = {
        "an optimizer": optimizer, "a loss": loss, "a step of its own": step,
        "optimizer_state_bytes": optimizer_state_bytes,
    }  # fmt: skip
    for what in [name for name, value in given.items() if value is not None]:
        if mode != "training":
            raise ModelArgumentError(f"{what} goes with mode='training', not with {mode!r}")
    if step is not None and loss is not None:
        raise ModelArgumentError("a step computes its own loss: give step, or loss and targets")
    if optimizer_state_bytes is not None:
        if optimizer is not None:
            raise ModelArgumentError("give an optimizer or optimizer_state_bytes, not both")
        optimizer = partial(StatedState, n_bytes=parse_bytes(optimizer_state_bytes))
    return ResettingStep(
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


def _measured(family: StepFamily, budget: MemoryBudget, bound: int) -> tuple[StepFamily, float]:
    """Measure the workspaces of the device, if there is one; return the family and the seconds.

    cuDNN uses other kernels for large batches, so workspaces are measured at the predicted
    size, and the prediction is repeated with them.
    """
    if budget.device is None:
        return family, 0.0
    n, measured, total_s = max(1, family.largest(budget.limit_bytes, bound)), set[int](), 0.0
    while n and n not in measured and len(measured) < ROUNDS:
        workspaces, seconds = measured_workspaces(family.calls(n), budget.device)
        measured.add(n)
        total_s += seconds
        family = family.with_workspaces(workspaces)
        n = family.largest(budget.limit_bytes, bound)
    return family, total_s


def margin_bytes(margin: str | int) -> int:
    """Size of a margin; unlike other amounts of memory it may be 0."""
    return 0 if margin == 0 else parse_bytes(margin)


def _gap(family: StepFamily, n: int, limit_bytes: int) -> tuple[str, ...]:
    """Note if a smaller batch does not fit although this one does."""
    if n <= 2 or not family.is_linear or family.fits(n - 1, limit_bytes):
        return ()
    return (
        f"{n} fit, as parts happen to be of the same size, and {n - 1} do not: keep to this "
        "number, also where a data set ends (drop_last=True)",
    )


def too_large(
    what: str, needed: int, budget: MemoryBudget, margin: int = 0, smaller: str = "patch"
) -> TooLargeError:
    """Error of what does not fit, with the part of a step that may be `smaller`."""
    less = f" less a margin of {format_bytes(margin)}" if margin else ""
    return TooLargeError(
        f"{what} does not fit: it needs {format_bytes(needed)}, and there are "
        f"{format_bytes(budget.limit_bytes)}{less} ({budget.origin}); take a smaller {smaller} or "
        "model, or a card with more memory"
    )


def _is_replayed(step: ModelStep, inputs: tuple[Any, ...]) -> bool:
    """True if a step can be replayed."""
    try:
        step.trace(inputs, Workspaces.none(), steps=1)
    except (ModelArgumentError, TraceError):
        return False
    return True


def _with_hint(error: Exception, model: nn.Module, shape: tuple[int, ...]) -> Exception:
    """Add to an error that the patch is not divisible by what the model needs, if so."""
    depth = getattr(model, "depth", None)
    if not isinstance(depth, int) or all(size % 2**depth == 0 for size in shape):
        return error
    kind = type(error) if isinstance(error, EstimatorError) else ModelArgumentError
    return kind(
        f"{error}; the model's depth is {depth}, so each axis of the patch {shape} should be a "
        f"multiple of {2**depth}"
    )
