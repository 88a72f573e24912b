"""Losses as users name them, and what torch's losses are given of a model's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..nn_errors import ModelArgumentError
from ..replay import Spec
from ..replay.nested import is_record

Loss = Callable[..., torch.Tensor]

_INDEX_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_INDEX_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
"""Losses with class numbers as targets, which have one axis less than the output."""


class OutputLoss:
    """A loss of torch on an output that is a container: the sum over the tensors right inside.

    So segmentation models are trained that return ``{"out": ..., "aux": ...}``. Where there are
    "logits", they alone count: a transformer returns its caches beside them.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, output: Any, *targets: Any) -> torch.Tensor:
        """Sum of the loss over the predictions in an output."""
        total: torch.Tensor | None = None
        for tensor in predictions_in(output):
            value = self.loss(tensor, *targets)
            total = value if total is None else total + value
        if total is None:
            raise ModelArgumentError(
                f"{loss_name(self.loss)} needs a tensor, and the model returns a "
                f"{type(output).__name__} without one: give a function of the output, such as "
                "loss=lambda output, target: ..."
            )
        return total


def completed(loss: Loss | None) -> Loss | None:
    """Loss that takes whatever a model returns; functions of users get it as it is."""
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        given = f"the class {loss.__name__}" if isinstance(loss, type) else repr(loss)
        raise ModelArgumentError(
            "loss is a function of output and targets, or a module such as nn.MSELoss(), not "
            f"{given}"
        )
    return OutputLoss(loss) if loss is not None and _is_of_torch(loss) else loss


def predictions_in(output: Any) -> list[Any]:
    """Floating-point tensors right inside an output, or the output itself."""
    if isinstance(output, torch.Tensor | Spec):
        return [output]
    if is_record(output) and not isinstance(output, Mapping):
        output = {name: getattr(output, name) for name in vars(output)}
    if isinstance(output, Mapping) and "logits" in output:
        return [output["logits"]]
    items = output.values() if isinstance(output, Mapping) else output
    if not isinstance(output, Mapping | tuple | list):
        return []
    return [
        item
        for item in items
        if isinstance(item, torch.Tensor | Spec) and item.dtype.is_floating_point and item.shape
    ]


def targets_like(loss: Loss, prediction: Spec) -> Spec:
    """Targets of a loss: class numbers, or numbers of the shape of a prediction."""
    plain = loss.loss if isinstance(loss, OutputLoss) else loss
    function = plain.func if isinstance(plain, partial) else plain
    if isinstance(function, _INDEX_LOSSES) or function in _INDEX_FUNCTIONS:
        return Spec((*prediction.shape[:1], *prediction.shape[2:]), torch.long)
    return Spec(prediction.shape, torch.float32)


def loss_named(name: str) -> Loss:
    """Loss of torch by its name: of the class, or of the function.

    Raises
    ------
    ModelArgumentError
        If torch has none of that name, with the names that come near.
    """
    classes = [each for each in dir(nn) if each.endswith("Loss")]
    plain = {each.removesuffix("Loss").lower(): each for each in classes}
    wanted = name.lower().replace("_", "").removesuffix("loss")
    if wanted not in plain:
        near = get_close_matches(wanted, plain, 4, 0.4)
        known = ", ".join(plain[each] for each in near or ("crossentropy", "mse", "l1"))
        raise ModelArgumentError(f"{name!r} is no loss of torch.nn; there is {known}")
    made: Loss = getattr(nn, plain[wanted])()
    return made


def loss_name(loss: Loss) -> str:
    """Name of a loss for messages."""
    plain = loss.loss if isinstance(loss, OutputLoss) else loss
    return getattr(plain, "__name__", type(plain).__name__)


def _is_of_torch(loss: Any) -> bool:
    plain = loss.func if isinstance(loss, partial) else loss
    if isinstance(plain, nn.Module):
        return type(plain).__module__.startswith("torch.")
    return getattr(plain, "__module__", "") == functional.__name__
