"""Training steps in parts of the batch, with accumulated gradients and without recomputation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import nn

from ..nn_errors import ModelArgumentError
from .split import batch_statistics


def backward_in_parts(
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    parts: int,
    *,
    amp: torch.dtype | None = None,
    scale: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Run the forward and backward passes of a step, one part of the batch at a time.

    Replaces ``loss(model(*inputs), *targets).backward()`` in a training loop, and needs the
    activations of one part only.

    Parameters
    ----------
    model : torch.nn.Module
        Model without layers that take the statistics of a batch.
    loss : callable
        Mean over the batch, or a sum if its attribute ``reduction`` is "sum".
    inputs, targets : sequence of tensor
        Arguments of the model and of the loss; the first axis of each is the batch.
    parts : int
        Number of parts, at most the number of samples.
    amp : torch.dtype, optional
        Lower precision of autocast.
    scale : callable, optional
        Function such as ``torch.amp.GradScaler.scale``.

    Returns
    -------
    tensor
        Loss of the whole batch, without its graph.

    Raises
    ------
    ModelArgumentError
        If the model takes a batch's statistics, which differ in parts, or if there are more
        parts than samples.

    Notes
    -----
    Gradients are those of the whole batch, summed in another order.
    """
    layers = batch_statistics(model)
    if layers:
        raise ModelArgumentError(
            f"{len(layers)} layers take the statistics of the batch ({layers[0]}): in parts they "
            "would be others; use reduce_memory, or a norm that does not (group norm)"
        )
    size = inputs[0].shape[0]
    if not 1 <= parts <= size:
        raise ModelArgumentError(f"{parts} parts of a batch of {size}: 1 to {size} would do")
    is_sum = getattr(loss, "reduction", "mean") == "sum"
    device = inputs[0].device.type
    total: torch.Tensor | None = None
    cuts = [t.tensor_split(parts) for t in (*inputs, *targets)]
    for some in zip(*cuts, strict=True):
        with nullcontext() if amp is None else torch.autocast(device, dtype=amp):
            value = loss(model(*some[: len(inputs)]), *some[len(inputs) :])
        if not is_sum:
            value = value * (some[0].shape[0] / size)
        (value if scale is None else scale(value)).backward()
        total = value.detach() if total is None else total + value.detach()
        del value
    assert total is not None
    return total
