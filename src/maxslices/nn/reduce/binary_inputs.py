"""Detection of modules whose inputs are zeros and ones, by running the model on several inputs."""

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
"""Number of inputs: the given one or normal numbers, uniform numbers from -5 to 5, and zeros and
ones."""


def probe_binary(model: nn.Module, inputs: Sequence[Any]) -> dict[str, tuple[bool, ...]]:
    """Find the tensor arguments of each module that hold only 0 and 1, and at least one 1.

    Copies of the model are run without gradients on its own device in eval mode. Norms are in train
    mode if layers work on several time steps: with the statistics of an untrained network hardly a
    neuron fires. Inputs are real tensors, or a `Spec` of which one sample is made, along the axis
    after time if layers work on several time steps, else along the first.

    Returns
    -------
    dict
        One flag for each tensor argument, by path; modules that are never called are missing.
    """
    fine: dict[str, list[bool]] = {}
    spiked: dict[str, list[bool]] = {}  # nothing but 0 is no evidence
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device.type == "meta":
        return {}
    has_time = any(getattr(m, "step_mode", "") == "m" for m in model.modules())

    def watch(path: str) -> Any:
        def hook(_m: nn.Module, args: Any) -> None:
            given = [a for a in args if torch.is_tensor(a)]
            now = [a.is_floating_point() and _is_binary(a) for a in given]
            old = fine.get(path, now)
            fine[path] = [a and b for a, b in zip(old, now, strict=False)]
            ones = [fits and bool((a == 1).any()) for a, fits in zip(given, now, strict=True)]
            before = spiked.get(path, ones)
            spiked[path] = [a or b for a, b in zip(before, ones, strict=False)]

        return hook

    for trial in range(N_TRIALS):
        made = real_copy(model).eval()
        for path, module in made.named_modules():
            if path:
                module.register_forward_pre_hook(watch(path))
            if has_time and isinstance(module, nn.modules.batchnorm._NormBase):
                module.train()
        with torch.no_grad():
            made(*map_leaves(lambda x: _sample(x, trial, has_time, device), tuple(inputs)))  # noqa: B023
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
    made = torch.empty(shape, dtype=item.dtype, device=device)
    if trial % 3 == 0:
        return made.normal_()
    return made.uniform_(-5, 5) if trial % 3 == 1 else made.bernoulli_(0.5)


def names_of_compressors(
    model: nn.Module, binary: dict[str, tuple[bool, ...]], compressors: Mapping[str, Any] | None
) -> dict[str, tuple[str, ...]]:
    """Compressor names by path: as asked for, else bits for binary inputs."""
    found = {
        path: tuple("bit" if each else "none" for each in flags) for path, flags in binary.items()
    }
    asked: dict[str, Any] = {
        path: module.x_compressor
        for path, module in model.named_modules()
        if getattr(module, "x_compressor", None) is not None
    }
    asked.update(compressors or {})
    known = dict(model.named_modules())
    for path, spec in asked.items():
        if path not in known:
            raise ModelArgumentError(f"compressors: there is no module {path!r}")
        name = spec if isinstance(spec, str) else getattr(spec, "name", type(spec).__name__)
        found[path] = (name,) * max(1, len(found.get(path, ())))
    return found
