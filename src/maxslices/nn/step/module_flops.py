"""Floating-point operations of a model's modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..replay import recurrent


def module_flops(model: nn.Module, call: Callable[[], Any]) -> dict[str, dict[Any, int]]:
    """Operations of each module by operator, children included, while `call` runs.

    Keys are paths of modules; "" has all operations.
    """
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten._cudnn_rnn: recurrent.flops}
    )
    counter.mod_tracker = _CallTracker(model)  # type: ignore[assignment]
    with counter:
        call()
    counts = counter.get_flop_counts()
    return {path if path != "Global" else "": by_op for path, by_op in counts.items()}


class _CallTracker:
    """Modules inside a model that are being called.

    torch's own tracker has hooks on gradients too, which fail where a forward pass computes some.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooks: list[Any] = []
        self._running: list[str] = []

    @property
    def parents(self) -> set[str]:
        """Paths of the modules, and torch's name for all of them."""
        return {"Global", *self._running}

    def __enter__(self) -> _CallTracker:
        for path, module in self._model.named_modules():
            if path:
                self._hooks += [
                    module.register_forward_pre_hook(self._entered(path)),
                    module.register_forward_hook(self._left, always_call=True),
                ]
        return self

    def __exit__(self, *_error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _entered(self, path: str) -> Callable[..., None]:
        return lambda *_call: self._running.append(path)

    def _left(self, *_call: Any) -> None:
        self._running.pop()
