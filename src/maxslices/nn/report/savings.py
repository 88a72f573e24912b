"""Ways to save memory, each replayed on a changed copy of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..nn_errors import ModelArgumentError
from ..replay import Trace, TraceError, Workspaces
from ..step.model_step import ModelStep


class _UnchangedError(Exception):
    """Nothing to change: the replay would be that of the model as it is."""


_MAKERS = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.Linear,
    nn.Bilinear,
)
"""Modules whose results nothing else refers to, so the next module of a row may overwrite them."""
_LONG_ROW = 6
"""A Sequential of at least this many layers is checkpointed in pieces of about the square root of
their number (Chen et al., 2016); a shorter one as a whole."""
_MOST_LEVELS = 3
"""Maximum depth of the modules that are checkpointed; each level costs one replay."""


@dataclass(frozen=True, slots=True)
class Saving:
    """One way to need less memory."""

    name: str
    """One of "in place", "checkpoint" and "no_grad"."""
    how: str
    """Description of the change."""
    peak_bytes: int
    """Peak of allocated memory with the change, replayed."""
    saved_bytes: int
    """Difference to the peak without it; negative if it needs more."""


def savings_of(
    step: ModelStep,
    inputs: Sequence[Any],
    workspaces: Workspaces,
    base: Trace,
    before: Callable[[nn.Module], Any] | None = None,
) -> tuple[Saving, ...]:
    """Savings of in-place activations, checkpointing and no_grad, the largest first.

    `before` changes each copy first, as it did for `base`.
    """
    found: list[Saving] = []

    def peak(
        changed: ModelStep, change: Callable[[nn.Module], list[str]] | None = None
    ) -> tuple[int, list[str]] | None:
        """Peak with a change, and the paths it changed; None where nothing is gained by it."""
        paths: list[str] = []

        def both(model: nn.Module) -> None:
            if before is not None and changed.mode == "training":
                before(model)
            if change is not None:
                paths.extend(change(model))
                if not paths:
                    raise _UnchangedError

        try:
            trace = changed.trace(inputs, workspaces, change=both)
        except (_UnchangedError, TraceError, ModelArgumentError):
            return None  # there is nothing to change, or the model does not run that way
        return trace.allocated_bytes, paths

    def add(name: str, how: str, made: tuple[int, list[str]] | None) -> None:
        if made is not None:
            n_bytes, paths = made
            how = f"{how} {_counted(paths)}" if paths else how
            found.append(Saving(name, how, n_bytes, base.allocated_bytes - n_bytes))

    add("in place", "inplace=True for", peak(step, make_in_place))
    if step.mode != "inference":
        levels = (
            peak(step, partial(checkpoint_level, level=level))
            for level in range(1, _MOST_LEVELS + 1)
        )
        best = min((each for each in levels if each), key=itemgetter(0), default=None)
        add("checkpoint", "torch.utils.checkpoint around", best)
        without = replace(step, mode="inference", optimizer=None, loss=None, evaluate=False)
        add("no_grad", "torch.no_grad(), if no gradients are wanted", peak(without))
    return tuple(sorted(found, key=lambda saving: saving.peak_bytes))


def make_in_place(model: nn.Module) -> list[str]:
    """Make activations work in place where that is safe; return their paths.

    It is safe in an ``nn.Sequential``, after a module whose result nothing else refers to.
    """
    changed = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.Sequential):
            continue
        before: nn.Module | None = None
        for name, part in module.named_children():
            if getattr(part, "inplace", None) is False and isinstance(before, _MAKERS):
                setattr(part, "inplace", True)  # noqa: B010 - a plain attribute, not a tensor
                changed.append(f"{path}.{name}" if path else name)
            before = part
    return changed


def checkpoint_level(model: nn.Module, level: int) -> list[str]:
    """Checkpoint the modules at a depth; return their paths.

    A ModuleList or ModuleDict does not count as a level. A long row of layers is checkpointed
    in pieces.
    """
    wrapped = []
    for path, module in list(_at_level(model, "", level)):
        if not any(parameter.requires_grad for parameter in module.parameters()):
            continue
        leaves = [part for part in module.children() if not any(part.children())]
        if isinstance(module, nn.Sequential) and len(leaves) == len(module) >= _LONG_ROW:
            _in_pieces(module)
            wrapped.append(f"{path} in pieces")
        elif any(module.children()):
            _whole(module)
            wrapped.append(path)
    return wrapped


def _at_level(module: nn.Module, path: str, level: int) -> Iterator[tuple[str, nn.Module]]:
    for name, part in module.named_children():
        where = f"{path}.{name}" if path else name
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield from _at_level(part, where, level)
        elif level == 1:
            yield where, part
        else:
            yield from _at_level(part, where, level - 1)


def _whole(module: nn.Module) -> None:
    forward = module.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = again


def _in_pieces(module: nn.Sequential) -> None:
    parts = list(module)
    size = math.ceil(math.sqrt(len(parts)))
    pieces = [nn.Sequential(*parts[at : at + size]) for at in range(0, len(parts), size)]

    def again(x: Any) -> Any:
        for piece in pieces:
            x = checkpoint(piece, x, use_reentrant=False) if torch.is_grad_enabled() else piece(x)
        return x

    module.forward = again  # type: ignore[method-assign]


def _counted(names: list[str]) -> str:
    first = ", ".join(names[:4])
    return first if len(names) <= 4 else f"{first} and {len(names) - 4} more"
