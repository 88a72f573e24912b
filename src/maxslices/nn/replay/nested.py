"""Tensors in containers: tuples, lists, mappings of any class, and dataclasses.

Models return tensors, dicts, mappings of their own classes, and dataclasses. torch's pytrees
support only the first two, and registered classes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..nn_errors import TraceError
from .object_copies import copy_objects


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of a tensor, in place of the tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False

    def empty(self) -> torch.Tensor:
        """Make such a tensor without data, on the meta device."""
        return torch.empty(
            self.shape, dtype=self.dtype, device="meta", requires_grad=self.requires_grad
        )


def leaves(value: Any) -> Iterator[Any]:
    """Yield all items of nested containers that are not containers."""
    for leaf in tree_flatten(value)[0]:
        if isinstance(leaf, Mapping):
            for item in leaf.values():
                yield from leaves(item)
        elif is_record(leaf):
            for field in dataclasses.fields(leaf):
                yield from leaves(getattr(leaf, field.name, None))
        else:
            yield leaf


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors in nested containers, in order."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Copy nested containers, with a function applied to each leaf."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, MutableMapping):
            copied = copy_objects(leaf, lambda held: held)  # including its inner containers
            for name, item in leaf.items():
                copied[name] = map_leaves(function, item)
            return copied
        if is_record(leaf):
            record = copy.copy(leaf)
            for field in dataclasses.fields(leaf):
                item = map_leaves(function, getattr(leaf, field.name, None))
                object.__setattr__(record, field.name, item)  # the class may be frozen
            return record
        return function(leaf)

    flat, structure = tree_flatten(value)
    return tree_unflatten([convert(leaf) for leaf in flat], structure)


def copy_containers(value: Any) -> Any:
    """Copy containers, but not their leaves, so that a pass cannot change those of the next."""
    return map_leaves(lambda leaf: leaf, value)


def concat_outputs(parts: Sequence[Any]) -> Any:
    """Containers of the first part, with the tensors of all parts concatenated.

    Raises
    ------
    RuntimeError
        If the whole does not follow from the parts. Examples are scalars, such as a mean, and
        objects that may hold tensors.
    """
    columns = zip(*(leaves(part) for part in parts), strict=True)

    def join(leaf: Any) -> Any:
        column = next(columns)
        if isinstance(leaf, torch.Tensor):
            return torch.cat(column)
        if leaf is not None and not isinstance(leaf, bool | int | float | str):
            raise RuntimeError(f"results of type {type(leaf).__name__} cannot be concatenated")
        if any(other != leaf for other in column):
            raise RuntimeError(f"parts return different values {column}")
        return leaf

    return map_leaves(join, parts[0])


def own_loss(output: Any) -> torch.Tensor | None:
    """Scalar named "loss" in the output of a model, or None."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    is_loss = isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad
    return loss if is_loss else None


def default_loss(output: Any) -> torch.Tensor:
    """Loss by default: the model's own, else the sum of its floating-point results.

    Raises
    ------
    TraceError
        If the output has no floating-point tensor.
    """
    own = own_loss(output)
    if own is not None:
        return own
    tensors = [t for t in tensors_in(output) if t.is_floating_point()]
    if not tensors:
        raise TraceError("the model returns no floating-point tensor to compute a loss from")
    total = tensors[0].sum()
    for tensor in tensors[1:]:
        total = total + tensor.sum()
    return total


def is_record(value: Any) -> bool:
    """True for an instance of a dataclass, except `Spec`, which represents a tensor."""
    is_instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_instance and not isinstance(value, Spec)
