"""What a replay does in place of an operator, where a tensor without data would differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from . import shape_rules as rules
from .attribution import user_line
from .dispatch_base import DispatchMode
from .host_tensor import HostTensor
from .replay_errors import DataDependentError

if TYPE_CHECKING:
    from .recorder import Replay

aten = torch.ops.aten
_current_node = torch._C._current_autograd_node


def _add(owner: Replay, func: Any, args: Any, kwargs: Any) -> Any:
    """Add gradients: autograd's engine does so in place where it holds the only reference.

    It does not for tensors without data, so that is done here.
    """
    if _current_node() is not None and not kwargs and len(args) == 2:
        old, new = args
        if (
            isinstance(old, torch.Tensor)
            and isinstance(new, torch.Tensor)
            and old.is_meta
            and old.shape == new.shape
            and old.dtype == new.dtype
            and not torch.is_grad_enabled()
            and not is_shared(old)
            and is_dense(old)
        ):
            return old
    return rules.call(func, args, kwargs)


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's items lie next to each other, none twice."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_shared(tensor: torch.Tensor) -> bool:
    """Tell whether an operator's operand, or its memory, is held by anything else.

    Speaks of the first operand of `aten.add` inside a dispatch mode, called by autograd's
    engine: the references that the call itself holds are not counted.
    """
    of_tensor, of_storage = sole_counts()
    return _tensor_count(tensor) > of_tensor or _storage_count(tensor) > of_storage


def _tensor_count(tensor: torch.Tensor) -> int:
    count = getattr(tensor, "_use_count", None)  # not every torch tells
    return 0 if count is None else int(count())


def _storage_count(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


@lru_cache(maxsize=1)
def sole_counts() -> tuple[int, int]:
    """Return the counts seen where the engine holds the only reference to a gradient."""
    seen: list[tuple[int, int]] = []

    class Look(DispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is aten.add.Tensor and _current_node() is not None:
                look(args)
            return func(*args, **(kwargs or {}))

    def look(args: Any) -> None:
        old, _ = args
        seen.append((_tensor_count(old), _storage_count(old)))

    def outer() -> None:
        leaf = torch.empty(2, device="meta", requires_grad=True)
        x = leaf * 2.0
        (x.sin() + x.cos()).sum().backward()

    with torch.inference_mode(False), torch.enable_grad(), Look():
        outer()
    return seen[0]


def _to_copy(owner: Replay, func: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if args[0].is_meta and device is not None and device.type == "cpu":
        kwargs = {**kwargs, "device": torch.device("meta"), "pin_memory": None}
        return HostTensor(func(*args, **kwargs))
    return func(*args, **kwargs)


def _copy(owner: Replay, func: Any, args: Any, kwargs: Any) -> Any:
    into, source = args[:2]
    if source.is_meta and not into.is_meta:  # what is on the host then has no meaning
        return into
    return func(*args, **kwargs)


def _item(owner: Replay, func: Any, args: Any, kwargs: Any) -> Any:
    if args[0].is_meta:
        raise DataDependentError(
            f"{user_line()}: this line needs the value of a tensor (item, float, int, bool or "
            "if), so what it allocates cannot be known without running it"
        )
    return func(*args, **kwargs)


def _summed_loss(owner: Replay, func: Any, args: Any, kwargs: Any) -> Any:
    """Give the result the storage that it has on CUDA: that of all items, made smaller."""
    made, x = rules.call(func, args, kwargs), args[0]
    if not x.is_meta or made.dim():
        return made
    storage = torch.empty_like(x).untyped_storage()
    return torch.empty(0, dtype=made.dtype, device="meta").set_(storage, 0, (), ())


COPIES = frozenset({aten.copy_.default, aten._to_copy.default})
"""Operators that take one tensor from the host to the device."""

HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: _add,
    aten.binary_cross_entropy.default: _summed_loss,
    aten.mse_loss.default: _summed_loss,
    aten.smooth_l1_loss.default: _summed_loss,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy,
    aten._local_scalar_dense.default: _item,
}
"""What is done in place of an operator: ``handler(replay, op, args, kwargs)``."""
