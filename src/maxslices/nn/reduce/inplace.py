"""Activations that can overwrite their input without changing a result or a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..replay import Replay, Workspaces
from ..replay.nested import tensors_in
from ..step.model_step import ModelStep


def _is_candidate(module: nn.Module) -> bool:
    # Their gradients follow from the result alone, to the bit.
    if not isinstance(module, nn.ReLU | nn.ReLU6 | nn.LeakyReLU) or module.inplace:
        return False
    return not isinstance(module, nn.LeakyReLU) or module.negative_slope > 0


class _StorageUses(TorchDispatchMode):
    """Records the last operator that reads each storage."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = 0
        self.last: dict[int, int] = {}
        self.alive: list[Any] = []  # nothing is freed, so no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.clock += 1
        for item in tree_leaves((args, kwargs)):
            if torch.is_tensor(item):
                self.last[_key(item)] = self.clock
        made = func(*args, **(kwargs or {}))
        self.alive.append(made)
        return made


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def safe_in_place(step: ModelStep, inputs: Sequence[Any]) -> list[str]:
    """Paths of activations that can be switched to ``inplace=True``.

    The input of such an activation is not saved before it, not read after it, and neither the
    model's input nor among its results. Gradients are the same to the bit.
    """
    uses = _StorageUses()
    saved: set[int] = set()
    seen: list[tuple[str, int, int, bool]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.add(_key(tensor))
        return tensor

    before: list[bool] = []
    with Replay(workspaces=Workspaces.none(), lines=False) as record:
        model = record.model(step.meta_copy(), is_on_meta=True)
        given = record.input(tuple(inputs))
        own = (*tensors_in(given), *model.parameters(), *model.buffers())
        foreign = {_key(t) for t in own if t.is_meta}

        def enter(_m: nn.Module, args: Any) -> None:
            key = _key(args[0])
            before.append(key in saved or key in foreign or not args[0].requires_grad)

        def leaving(path: str) -> Any:
            def hook(_m: nn.Module, args: Any, _made: Any) -> None:
                seen.append((path, _key(args[0]), uses.clock, before.pop()))

            return hook

        for path, module in model.named_modules():
            if _is_candidate(module):
                module.register_forward_pre_hook(enter)
                module.register_forward_hook(leaving(path))
        with saved_tensors_hooks(pack, lambda x: x), uses:
            output = model(*given)
        results = {_key(t) for t in tensors_in(output)}
    good: dict[str, bool] = {}
    for path, key, clock, is_taken in seen:
        fine = not is_taken and key not in results and uses.last.get(key, 0) <= clock
        good[path] = good.get(path, True) and fine
    return [path for path, fine in good.items() if fine]


def set_in_place(model: nn.Module, paths: Sequence[str], value: bool = True) -> None:
    """Switch activations to work in place, or back."""
    modules = dict(model.named_modules())
    for path in paths:
        modules[path].inplace = value
