"""Cache of the shapes, strides and dtypes that operators return for tensors without data.

On the meta device torch runs many operators in Python code that takes a millisecond a call: norms,
activations and their gradients. A network calls the same operators on the same shapes repeatedly,
so later results are made from the cached shape, strides and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

_MOST = 8192
"""Cached calls, after which the cache is cleared. It bounds memory where a process replays many
models: a step of training of ResNet50 takes 120 entries, one of ViT-B/16 175."""

_Description = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""Shape, strides and dtype."""
_Results = tuple[bool, tuple[_Description | None, ...]]
"""Whether the result is one tensor rather than a tuple, and a description of each tensor."""

_known: dict[Any, _Results] = {}
_makes_new: dict[Any, bool] = {}


def run_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator, or make its result from the cache."""
    if func._schema.is_mutable:
        # Optimizers change long lists of tensors at once; without data there is nothing to do.
        if func._schema.name.startswith("aten::_foreach_") and _all_meta(args):
            return None
        return func(*args, **kwargs)
    if not _is_fresh(func):
        return func(*args, **kwargs)
    key = _key(func, args, kwargs)
    if key is None:
        return func(*args, **kwargs)
    known = _known.get(key)
    if known is None:
        made = func(*args, **kwargs)
        if func is aten.convolution.default:
            (made,) = _in_cudnn_format([made], *args[:2])
        elif func is aten.convolution_backward.default:
            made = (*_in_cudnn_format(made[:2], *args[1:3]), made[2])
        _remember(key, made, args)
        return made
    is_one, described = known
    tensors = [
        None
        if each is None
        else torch.empty_strided(each[0], each[1], dtype=each[2], device="meta")
        for each in described
    ]
    return tensors[0] if is_one else tuple(tensors)


def _in_cudnn_format(made: Any, x: torch.Tensor, weight: torch.Tensor) -> list[Any]:
    """Results of a convolution, channels last if its input or its weight is, as on CUDA.

    On the meta device versions of torch differ: results are never channels last, or gradients
    never are, or they also are where the incoming gradient is.
    """
    orders = {suggest_memory_format(x), suggest_memory_format(weight)} - {torch.contiguous_format}
    order = orders.pop() if orders else torch.contiguous_format
    return [each if each is None else each.to(memory_format=order) for each in made]


def _is_fresh(func: Any) -> bool:
    """True if an operator returns new tensors only, and no lists."""
    fresh = _makes_new.get(func)
    if fresh is None:
        returned = func._schema.returns
        fresh = _makes_new[func] = bool(returned) and all(
            each.alias_info is None and isinstance(each.type, torch._C.TensorType)
            for each in returned
        )
    return fresh


def _all_meta(args: Iterable[Any]) -> bool:
    return all(t.is_meta for t in tree_leaves(tuple(args)) if isinstance(t, torch.Tensor))


def _key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Cache key of a call; None if its results cannot be cached."""
    parts: list[Any] = [func, torch.get_default_dtype()]
    has_tensor = False
    for name, item in (*enumerate(args), *kwargs.items()):
        if isinstance(item, torch.Tensor):
            if not item.is_meta:
                return None
            has_tensor = True
            parts.append((name, item.shape, item.stride(), item.dtype))
        elif isinstance(item, list | tuple):
            if any(not isinstance(each, int) for each in item):
                return None
            parts.append((name, *item))
        else:  # 1, 1.0 and True are equal as keys
            parts.append((name, type(item), item))
    try:
        key = tuple(parts)
        hash(key)
    except TypeError:
        return None
    return key if has_tensor else None


def _remember(key: Any, made: Any, args: tuple[Any, ...]) -> None:
    """Cache results if they are plain tensors, each with a storage of its own."""
    is_one = isinstance(made, torch.Tensor)
    tensors = (made,) if is_one else tuple(made)
    seen = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
    described: list[_Description | None] = []
    for each in tensors:
        if each is None:
            described.append(None)
            continue
        if type(each) is not torch.Tensor or not each.is_meta:
            return
        storage = each.untyped_storage()
        shape, strides, dtype = each.shape, each.stride(), each.dtype
        last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        n_bytes = (last + 1) * each.element_size() if each.numel() else 0
        if storage._cdata in seen or storage.nbytes() != n_bytes or each.storage_offset():
            return
        seen.add(storage._cdata)
        described.append((shape, strides, dtype))
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = is_one, tuple(described)
