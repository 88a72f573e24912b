"""Calls of modules, seen by hooks on the copy that is replayed."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from .allocation_log import Account
from .storages import ModuleCall


class Failure(NamedTuple):
    """The innermost module that raised; of the error itself nothing, as its frames hold tensors."""

    module: torch.nn.Module
    path: str
    shapes: list[tuple[int, ...]]
    """Of its input."""
    error_id: int


@dataclass(slots=True)
class ModuleCalls:
    """Notes which module's forward is at work."""

    account: Account
    seen: list[ModuleCall] = field(default_factory=list)
    """Calls, in order of their beginning."""
    failure: Failure | None = None

    def watch(self, module: torch.nn.Module, name: str) -> None:
        """Note the calls of a module from now on."""
        account, places = self.account, self.account.places
        open_calls: list[int] = []

        def enter(_module: Any, _args: Any) -> None:
            places.path.append(name)
            open_calls.append(len(self.seen))
            self.seen.append(
                ModuleCall(name, type(_module).__name__, account.n_events, 0, account.stage_name)
            )
            if torch.is_grad_enabled():
                places.remember((name, ""))

        def leave(_module: Any, args: Any, _result: Any) -> None:
            error = sys.exc_info()[1]
            if error is not None and (self.failure is None or self.failure.error_id != id(error)):
                shapes = [tuple(t.shape) for t in tree_leaves(args) if torch.is_tensor(t)]
                self.failure = Failure(_module, name, shapes, id(error))
            del error
            places.path.pop()
            place = open_calls.pop()
            self.seen[place] = self.seen[place]._replace(end=account.n_events)
            if torch.is_grad_enabled():
                places.remember((places.path[-1], ""))

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)
