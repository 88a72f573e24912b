"""Cache of the shapes, strides and dtypes that operators return for tensors without data.

On the meta device, torch runs many operators in Python code that takes a millisecond per call:
norms, activations and their gradients. A network calls the same operators repeatedly with the same
shapes, so later results are created from the cached shape, strides and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

_MOST = 8192
"""Number of cached calls at which the cache is cleared, which bounds its memory. A training step of
ResNet50 takes 120 entries, and one of ViT-B/16 175."""

_Description = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""Shape, strides and dtype."""
_Results = tuple[type, tuple[_Description | None, ...]]
"""Type of the result (tensor, tuple or list), and a description of each tensor."""

_cache: dict[Any, _Results] = {}
_makes_new: dict[Any, bool] = {}


_FACTORS = {
    aten.convolution.default: (0, 1),
    aten.mm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.addmv.default: (1, 2),
    aten.mv.default: (0, 1),
}
"""Operands that must have one dtype on a device, but not on the meta device."""


def run_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator, or create its result from the cache.

    Raises
    ------
    RuntimeError
        If it multiplies tensors of two dtypes, such as an input in float32 by weights in float16.
    """
    if func in _FACTORS:
        one, other = (args[place].dtype for place in _FACTORS[func])
        if one != other:
            raise RuntimeError(
                f"{func.name()} has operands of {one} and {other}. Pass inputs with the dtype of "
                "the weights"
            )
    if func._schema.is_mutable:
        # Optimizers change long lists of tensors at once. Without data nothing changes.
        if _is_for_each(func) and _all_meta(args):
            return None
        return func(*args, **kwargs)
    if not _is_fresh(func):
        return func(*args, **kwargs)
    if _is_for_each(func) and len(args[0]) > 1:
        return [run_operator(func, each, kwargs)[0] for each in _each_item(args)]
    key = _key(func, args, kwargs)
    if key is None:
        return func(*args, **kwargs)
    cached = _cache.get(key)
    if cached is None:
        result = func(*args, **kwargs)
        if func is aten.convolution.default:
            (result,) = _in_cudnn_format([result], *args[:2])
        elif func is aten.convolution_backward.default:
            result = (*_in_cudnn_format(result[:2], *args[1:3]), result[2])
        _remember(key, result, args)
        return result
    kind, described = cached
    tensors = [
        None
        if each is None
        else torch.empty_strided(each[0], each[1], dtype=each[2], device="meta")
        for each in described
    ]
    return tensors[0] if kind is torch.Tensor else kind(tensors)


def _is_for_each(func: Any) -> bool:
    """True if an operator acts on each item of lists separately, as in optimizers."""
    return bool(func._schema.name.startswith("aten::_foreach_"))


def _each_item(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the operands for each item, as lists of one."""
    for place in range(len(args[0])):
        yield tuple(
            item[place : place + 1] if isinstance(item, list | tuple) else item for item in args
        )


def _in_cudnn_format(results: Any, x: torch.Tensor, weight: torch.Tensor) -> list[Any]:
    """Results of a convolution, channels last if its input or its weight is, as on CUDA.

    Versions of torch differ in the memory format of results on the meta device.
    """
    orders = {suggest_memory_format(x), suggest_memory_format(weight)} - {torch.contiguous_format}
    order = orders.pop() if orders else torch.contiguous_format
    return [each if each is None else each.to(memory_format=order) for each in results]


def _is_fresh(func: Any) -> bool:
    """True if an operator returns new tensors only, and lists only if it acts on each item."""
    fresh = _makes_new.get(func)
    if fresh is None:
        returned = func._schema.returns
        fresh = _makes_new[func] = bool(returned) and all(
            each.alias_info is None
            and (isinstance(each.type, torch._C.TensorType) or _is_for_each(func))
            for each in returned
        )
    return fresh


def _all_meta(args: Iterable[Any]) -> bool:
    return all(t.is_meta for t in tree_leaves(tuple(args)) if isinstance(t, torch.Tensor))


def _key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Cache key of a call, or None if its results cannot be cached."""
    parts: list[Any] = [func, torch.get_default_dtype()]
    has_tensor = False
    for name, item in (*enumerate(args), *kwargs.items()):
        if isinstance(item, torch.Tensor):
            if not item.is_meta:
                return None
            has_tensor = True
            parts.append((name, item.shape, item.stride(), item.dtype))
        elif isinstance(item, list | tuple):
            parts.append((name, len(item)))
            for each in item:
                if isinstance(each, torch.Tensor):
                    if not each.is_meta:
                        return None
                    has_tensor = True
                    parts.append((each.shape, each.stride(), each.dtype))
                elif each is None or isinstance(each, int):
                    parts.append(each)
                else:
                    return None
        else:  # the type too, since 1, 1.0 and True are equal as keys
            parts.append((name, type(item), item))
    try:
        key = tuple(parts)
        hash(key)
    except TypeError:
        return None
    return key if has_tensor else None


def _remember(key: Any, result: Any, args: tuple[Any, ...]) -> None:
    """Cache results if they are plain tensors, each with its own storage."""
    kind = torch.Tensor if isinstance(result, torch.Tensor) else type(result)
    tensors = (result,) if kind is torch.Tensor else tuple(result)
    operands = [a for a in tree_leaves(args) if isinstance(a, torch.Tensor)]
    seen = {operand.untyped_storage()._cdata for operand in operands}
    described: list[_Description | None] = []
    for each in tensors:
        if each is None:
            described.append(None)
            continue
        if type(each) is not torch.Tensor or not each.is_meta or each.layout is not torch.strided:
            return
        storage = each.untyped_storage()
        shape, strides, dtype = each.shape, each.stride(), each.dtype
        last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        n_bytes = (last + 1) * each.element_size() if each.numel() else 0
        if storage._cdata in seen or storage.nbytes() != n_bytes or each.storage_offset():
            return
        seen.add(storage._cdata)
        described.append((shape, strides, dtype))
    if len(_cache) >= _MOST:
        _cache.clear()
    _cache[key] = kind, tuple(described)
