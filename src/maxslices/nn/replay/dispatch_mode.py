"""The dispatch mode that tells a replay what every operator makes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import shape_rules as rules
from .dispatch_base import DispatchMode
from .op_handlers import COPIES, HANDLERS
from .op_workspaces import IN_PARTS, calls_of, copied_bytes, passing_bytes, results_of

if TYPE_CHECKING:
    from .recorder import Replay

_META = torch.device("meta")


class StorageDispatchMode(DispatchMode):
    """Tells a `Replay` what every operator makes."""

    def __init__(self, owner: Replay) -> None:
        super().__init__()
        self.owner = owner
        self.handlers = dict(HANDLERS)
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            kwargs = {**kwargs, "device": _META}
        args = self._together(func, args)
        handler = self.handlers.get(func)
        if handler is None:
            made = rules.call(func, args, kwargs)
        else:
            made = handler(self.owner, func, args, kwargs)
        owner, name = self.owner, func.name()
        owner.n_operators += 1
        owner.n_in_python += getattr(func, "_defined_in_python", False)
        calls = calls_of(func, args, made) or []
        copies = [owner.temporary(n_bytes, name) for n_bytes in copied_bytes(func, args)]
        if isinstance(made, torch.Tensor):
            if made.is_meta:
                owner.follow(made, name)
        elif isinstance(made, tuple | list):
            waiting = iter(calls) if func in IN_PARTS else iter(())
            for place, item in enumerate(results_of(func, tuple(made))):
                if func in IN_PARTS and place == 2:
                    copies.clear()  # the bias's gradient is a sum of what was given
                for leaf in tree_leaves(item) if isinstance(item, list | tuple) else (item,):
                    if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                        owner.follow(leaf, name)
                        owner.called(islice(waiting, 1))
            if func in IN_PARTS:
                return made
        owner.called(calls)
        taken: dict[str, torch.Tensor] = {}
        for what, n_bytes in passing_bytes(func, args):
            if n_bytes < 0:
                del taken[what]
            else:
                taken[what] = owner.temporary(n_bytes, name)
        taken.clear()  # before the copies
        return made

    def _together(self, func: Any, args: Any) -> Any:
        """Return operands, none of them real where others have no data."""
        meta = real = False
        for item in args:
            if isinstance(item, torch.Tensor):
                if item.is_meta:
                    meta = True
                elif item.dim():
                    real = True
            elif isinstance(item, list | tuple) and item and isinstance(item[0], torch.Tensor):
                meta = meta or any(t.is_meta for t in item if t is not None)
                real = real or any(t.dim() and not t.is_meta for t in item if t is not None)
        if not (meta and real) or func in COPIES:
            return args
        return tree_map(
            lambda item: (
                self.owner.moves.tensor(item)
                if isinstance(item, torch.Tensor) and item.dim() and not item.is_meta
                else item
            ),
            args,
        )


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that calls a function in place of an operator."""

    def handler(owner: Replay, func: Any, args: Any, kwargs: Any) -> Any:
        with owner.following():  # its parts are followed one by one
            return function(*args, **kwargs)

    return handler
