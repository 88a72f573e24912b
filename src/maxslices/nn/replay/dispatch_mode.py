"""Dispatch mode that records the allocations of every operator in an allocation log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .allocation_log import AllocationLog, user_line
from .host_tensor import ToMeta
from .known_values import KnownValues
from .op_handlers import COPIES, HANDLERS, DispatchMode, masks_in
from .op_workspaces import IN_PARTS, calls_of, copied_bytes, passing_bytes, results_of
from .shape_rules import run_operator

aten = torch.ops.aten
_META = torch.device("meta")


class StorageDispatchMode(DispatchMode):
    """Runs operators on tensors without data and logs the allocations of each.

    Parameters
    ----------
    log : AllocationLog
        Log of results, workspaces and calls.
    to_meta : ToMeta
        Replaces real operands of operators that also have operands without data.

    Attributes
    ----------
    handlers : dict
        Functions that replace operators.
    values : KnownValues
        Values of tensors without data that follow from the inputs.
    """

    def __init__(self, log: AllocationLog, to_meta: ToMeta) -> None:
        super().__init__()
        self._log, self._to_meta = log, to_meta
        self.values = KnownValues(log.note)
        self.handlers = dict(HANDLERS)

    def run_parts_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Handler that runs a function instead of an operator and logs each of its operators."""

        def handler(func: Any, args: Any, kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return handler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        log = self._log
        if log.is_paused:
            return func(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            kwargs = {**kwargs, "device": _META}
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return self.values.item(args[0])
        if func is aten.equal.default and (args[0].is_meta or args[1].is_meta):
            return self.values.equal(args[0], args[1])
        if func is aten._to_copy.default and device is not None and device.type == "cpu":
            values = self.values.given(args[0])
            if values is not None:  # such as lengths of sequences, which are needed on the host
                return func(values, **kwargs)
        if func is aten._pack_padded_sequence.default:
            args = (args[0], self.values.read(args[1]), *args[2:])
        original_args, args = args, self._without_real_operands(func, args)
        handler = self.handlers.get(func)
        if handler is None:  # inside another operator, or without autograd
            handler = self.run_parts_of(func.decompose) if _is_composite(func) else run_operator
            self.handlers[func] = handler
        result = handler(func, args, kwargs)
        self.values.follow(func, original_args, kwargs, result)
        if masks_in(func, args):
            log.note(f"{user_line()} selects items by a mask: all items were counted")
        name = func.name()
        log.n_operators += 1
        log.n_in_python += getattr(func, "_defined_in_python", False)
        calls = calls_of(func, args, result) or []
        copies = [log.add_workspace(n_bytes, name) for n_bytes in copied_bytes(func, args)]
        if isinstance(result, torch.Tensor):
            if result.is_meta:
                log.add_result(result, name)
        elif isinstance(result, tuple | list):
            waiting = iter(calls) if func in IN_PARTS else iter(())
            for place, item in enumerate(results_of(func, tuple(result))):
                if func in IN_PARTS and place == 2:
                    # The gradient of the bias is a sum of the original operand, so the contiguous
                    # copies are no longer needed.
                    copies.clear()
                for leaf in tree_leaves(item) if isinstance(item, list | tuple) else (item,):
                    if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                        log.add_result(leaf, name)
                        log.add_calls(islice(waiting, 1))
            if func in IN_PARTS:
                return result
        log.add_calls(calls)
        buffers: dict[str, torch.Tensor] = {}
        for buffer, n_bytes in passing_bytes(func, args):
            if n_bytes < 0:
                del buffers[buffer]
            else:
                buffers[buffer] = log.add_workspace(n_bytes, name)
        buffers.clear()  # freed before the contiguous copies, as on the device
        return result

    def _without_real_operands(self, func: Any, args: Any) -> Any:
        """Operands with real tensors replaced, if another operand has no data."""
        has_meta = has_real = False
        for item in args:
            if isinstance(item, torch.Tensor):
                if item.is_meta:
                    has_meta = True
                elif item.dim():
                    has_real = True
            elif isinstance(item, list | tuple) and item and isinstance(item[0], torch.Tensor):
                tensors = [t for t in item if t is not None]
                has_meta = has_meta or any(t.is_meta for t in tensors)
                has_real = has_real or any(t.dim() and not t.is_meta for t in tensors)
        if not (has_meta and has_real) or func in COPIES:
            return args
        return tree_map(
            lambda item: (
                self._to_meta.tensor(item)
                if isinstance(item, torch.Tensor) and item.dim() and not item.is_meta
                else item
            ),
            args,
        )


def _is_composite(func: Any) -> bool:
    """True if an operator is composed of others on a device too. Views are excluded."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
    return func._can_decompose() and not func.is_view and not has_kernel
