"""Losses as users name them, and the tensors of a model's output that a loss takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...system.process_state import quiet
from ..nn_errors import ModelArgumentError, TraceError
from ..replay import Spec
from ..replay.nested import is_record, tensors_in

Loss = Callable[..., torch.Tensor]

_INDEX_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_INDEX_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
"""Losses with class numbers as targets, which have one axis less than the output."""


class OutputLoss:
    """A loss of torch on an output that is a container: the sum over the tensors directly inside.

    Segmentation models that return ``{"out": ..., "aux": ...}`` are trained like this. Of an output
    with "logits", only these count, as a transformer also returns its caches.
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
                f"{getattr(self.loss, '__name__', type(self.loss).__name__)} needs a tensor, and "
                f"the model returns a {type(output).__name__} without one. Pass a function of the "
                "output, such as loss=lambda output, target: ..."
            )
        return total


def completed(loss: Loss | None) -> Loss | None:
    """Loss that takes a model's whole output. Functions of users are returned unchanged."""
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        shown = f"the class {loss.__name__}" if isinstance(loss, type) else repr(loss)
        raise ModelArgumentError(
            "loss is a function of output and targets, or a module such as nn.MSELoss(), not "
            f"{shown}"
        )
    return OutputLoss(loss) if loss is not None and _is_of_torch(loss) else loss


def predictions_in(output: Any) -> list[Any]:
    """Floating-point tensors directly inside an output, or the output itself."""
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


def picked_by(loss: Loss, output: Any) -> list[torch.Tensor]:
    """Tensors of an output that the user's loss computes with, or all if it uses none of them."""
    tensors = tensors_in(output)
    if len(tensors) < 2:
        return tensors
    used = _UsedTensors(tensors)
    target = targets_like(loss, Spec(tuple(tensors[0].shape), tensors[0].dtype)).empty()
    # The target may have another shape than the tensor that is picked.
    with quiet(), used, suppress(RuntimeError, TypeError, ValueError, IndexError, TraceError):
        loss(output, target)
    return [tensor for tensor in tensors if id(tensor) in used.seen] or tensors


class _UsedTensors(TorchFunctionMode):
    """Records which of some tensors are operands."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._ids = {id(tensor) for tensor in tensors}
        self.seen: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= self._ids & {id(item) for item in tree_leaves((args, kwargs))}
        return func(*args, **(kwargs or {}))


def names_of(output: Any) -> str:
    """Tensors of an output with the keys or attributes that lead to them, for a message."""
    if is_record(output) and not isinstance(output, Mapping):
        output = {name: getattr(output, name) for name in vars(output)}
    if not isinstance(output, Mapping):
        return " and ".join(_shape(tensor) for tensor in tensors_in(output)) or "no tensor"
    named = [
        f"{name!r} ({', '.join(map(_shape, tensors))})"
        for name, item in output.items()
        if (tensors := tensors_in(item))
    ]
    return " and ".join(named) or "no tensor"


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


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
        If torch has no loss of that name. The message lists similar names.
    """
    classes = [each for each in dir(nn) if each.endswith("Loss")]
    plain = {each.removesuffix("Loss").lower(): each for each in classes}
    wanted = name.lower().replace("_", "").removesuffix("loss")
    if wanted not in plain:
        near = get_close_matches(wanted, plain, 4, 0.4)
        choices = ", ".join(plain[each] for each in near or ("crossentropy", "mse", "l1"))
        raise ModelArgumentError(f"torch.nn has no loss {name!r}. Similar names are {choices}")
    loss: Loss = getattr(nn, plain[wanted])()
    return loss


def _is_of_torch(loss: Any) -> bool:
    plain = loss.func if isinstance(loss, partial) else loss
    if isinstance(plain, nn.Module):
        return type(plain).__module__.startswith("torch.")
    return getattr(plain, "__module__", "") == functional.__name__
