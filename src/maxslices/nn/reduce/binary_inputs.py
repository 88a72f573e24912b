"""Detection of modules whose inputs are zeros and ones, by runs on several inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..nn_errors import ModelArgumentError
from ..replay import Spec
from ..replay.nested import map_leaves
from .gradient_check import real_copy

N_TRIALS = 3
"""Number of inputs: the user's or normal numbers, uniform ones from -5 to 5, and zeros and ones."""


def probe_binary(model: nn.Module, inputs: Sequence[Any]) -> dict[str, tuple[bool, ...]]:
    """Find the tensor arguments of each module that hold only 0 and 1, and at least one 1.

    Copies of the model run without gradients on its own device in eval mode. If layers process
    several time steps, norms are in train mode, as with the statistics of an untrained network
    hardly a neuron fires. For each `Spec`, a tensor of one sample is made. The axis of samples is
    the first, or the second if layers process several time steps.

    Returns
    -------
    dict
        One flag for each tensor argument, by path. Modules that are never called are omitted.
    """
    fine: dict[str, list[bool]] = {}
    spiked: dict[str, list[bool]] = {}  # inputs of zeros alone do not count
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device.type == "meta":
        return {}
    has_time = any(getattr(m, "step_mode", "") == "m" for m in model.modules())

    def watch(path: str) -> Any:
        def hook(_m: nn.Module, args: Any) -> None:
            tensors = [a for a in args if torch.is_tensor(a)]
            now = [a.is_floating_point() and _is_binary(a) for a in tensors]
            old = fine.get(path, now)
            fine[path] = [a and b for a, b in zip(old, now, strict=False)]
            ones = [fits and bool((a == 1).any()) for a, fits in zip(tensors, now, strict=True)]
            before = spiked.get(path, ones)
            spiked[path] = [a or b for a, b in zip(before, ones, strict=False)]

        return hook

    for trial in range(N_TRIALS):
        copy = real_copy(model).eval()
        for path, module in copy.named_modules():
            if path:
                module.register_forward_pre_hook(watch(path))
            if has_time and isinstance(module, nn.modules.batchnorm._NormBase):
                module.train()
        with torch.no_grad():
            copy(*map_leaves(lambda x: _sample(x, trial, has_time, device), tuple(inputs)))  # noqa: B023
        if not any(any(each) for each in fine.values()):
            break
    return {
        path: tuple(a and b for a, b in zip(each, spiked[path], strict=True))
        for path, each in fine.items()
    }


def _is_binary(tensor: torch.Tensor) -> bool:
    flat = tensor.reshape(-1)
    # Most tensors are not binary, and their first items show it.
    return all(bool(((x == 0) | (x == 1)).all()) for x in (flat[:4096], flat))


def _sample(item: Any, trial: int, has_time: bool, device: torch.device) -> Any:
    if torch.is_tensor(item) and trial == 0 and item.device.type != "meta":
        return item.to(device)
    if not torch.is_tensor(item) and not isinstance(item, Spec):
        return item
    shape = list(item.shape)
    axis = 1 if has_time and len(shape) > 1 else 0
    if isinstance(item, Spec) and shape:
        shape[axis] = 1
    if not item.dtype.is_floating_point:
        return torch.randint(0, 2, shape, device=device).to(item.dtype)
    sample = torch.empty(shape, dtype=item.dtype, device=device)
    if trial % 3 == 0:
        return sample.normal_()
    return sample.uniform_(-5, 5) if trial % 3 == 1 else sample.bernoulli_(0.5)


def names_of_compressors(
    model: nn.Module, binary: dict[str, tuple[bool, ...]], compressors: Mapping[str, Any] | None
) -> dict[str, tuple[str, ...]]:
    """Compressor names by path: the user's, or "bit" for binary inputs."""
    names = {
        path: tuple("bit" if each else "none" for each in flags) for path, flags in binary.items()
    }
    requested: dict[str, Any] = {
        path: module.x_compressor
        for path, module in model.named_modules()
        if getattr(module, "x_compressor", None) is not None
    }
    requested.update(compressors or {})
    modules = dict(model.named_modules())
    for path, spec in requested.items():
        if path not in modules:
            raise ModelArgumentError(f"compressors: the model has no module {path!r}")
        name = spec if isinstance(spec, str) else getattr(spec, "name", type(spec).__name__)
        names[path] = (name,) * max(1, len(names.get(path, ())))
    return names
