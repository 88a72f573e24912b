"""Arguments of a reduction in the form the search needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..nn_errors import ModelArgumentError
from ..replay import Spec
from ..replay.nested import mapped
from ..step.call_inputs import CallInputs
from ..step.layer_state import ResettingStep
from .study import children_of, ranges_of


def with_integers(values: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with a `Spec` for each tensor but those of integers, whose values decide.

    They are lengths of sequences, indices or classes. Numbers are random wherever they are needed:
    the zeros of a made-up input have hardly any gradients.
    """

    def converted(item: Any) -> Any:
        if not torch.is_tensor(item) or item.is_meta or not item.is_floating_point():
            is_number = torch.is_tensor(item) and item.is_meta
            return Spec(tuple(item.shape), item.dtype) if is_number else item
        return Spec(tuple(item.shape), item.dtype, item.requires_grad)

    return tuple(mapped(converted, value) for value in values)


def with_targets(step: ResettingStep) -> ResettingStep:
    """Step that computes its targets only once for each shape of inputs."""
    if step.loss is None:
        return step
    known: dict[Any, tuple[Any, ...]] = {}

    def targets(*inputs: Any) -> tuple[Any, ...]:
        specs = CallInputs(inputs).specs
        key = str(specs)
        if key not in known:
            known[key] = step.target_specs(specs)
        return known[key]

    return replace(step, targets=targets)


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
    for run in ranges_of(model):
        first = children_of(run, known)[0]
        if first in found:
            found[run.path] = found[first]
    return found
