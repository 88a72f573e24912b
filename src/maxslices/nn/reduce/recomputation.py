"""Recomputation of a block from what its first pass was given, whatever became of it since."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ...system.process_state import HostDraws
from ..nn_errors import RewriteError
from ..replay.object_copies import ObjectCopies, version_of
from .block_state import BlockState

_AGAIN = "computed again"
_GIVEN: Any = object()
"""Stands for a tensor that autograd keeps."""
_REFUSALS = {
    "cached during selective activation checkpoint has been mutated": (
        "a result that it keeps is changed in place later",
        "",
    ),
    "backward an extra time": (
        "the results that it keeps serve one backward pass",
        "For several (create_graph, retain_graph), reduce the model without 'selective' in means",
    ),
}
"""Parts of messages with which torch refuses a selective checkpoint, with a reason and advice."""


def recomputed(
    run: Callable[..., Any],
    state: BlockState,
    path: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    contexts: Mapping[str, Any],
) -> Any:
    """Run a block, and run it again in the backward pass with the same arguments and state.

    Parameters
    ----------
    run : callable
        Forward of the block.
    state : BlockState
        State of the block, which is restored for the recomputation.
    path : str
        Path of the block, for errors.
    args, kwargs : tuple, dict
        Arguments. Containers and objects of Python's classes are given again as they were at the
        call, see `ObjectCopies`: a block that fills a cache is given it without its own part. Other
        objects are given again themselves. Tensors are saved by autograd.
    contexts : mapping
        More arguments of `torch.utils.checkpoint.checkpoint`.

    Raises
    ------
    RewriteError
        In the backward pass, if tensors or objects that it was given, buffers or parameters were
        changed in place and are no longer what the first pass read.
    """
    arguments = ObjectCopies([args, kwargs])
    tensors = [leaf for leaf in arguments.leaves if torch.is_tensor(leaf)]
    others = [_GIVEN if torch.is_tensor(leaf) else leaf for leaf in arguments.leaves]
    arguments.leaves = []  # autograd holds them
    versions = [tensor_version(t) for t in tensors]
    before, draws = state.before(), HostDraws()
    first = [(args, kwargs)]

    def call(*given: torch.Tensor) -> Any:
        if first:
            own_args, own_kwargs = first.pop()
            return run(*own_args, **own_kwargs)
        check_unchanged(path, given, versions)
        changed = state.changed_since(before)
        if changed:
            raise RewriteError(path, _AGAIN, f"its {changed} is changed by that, or later")
        changed = arguments.changed()
        if changed:
            reason = f"the {changed} that it was given is changed by that, or later"
            raise RewriteError(path, _AGAIN, reason)
        waiting = iter(given)
        leaves = [next(waiting) if leaf is _GIVEN else leaf for leaf in others]
        its_args, its_kwargs = arguments.made(leaves)
        with state.restored(before), draws.again():
            try:
                return run(*its_args, **its_kwargs)
            except RuntimeError as error:
                known = [why for text, why in _REFUSALS.items() if text in str(error)]
                if not known:
                    raise
                raise RewriteError(path, _AGAIN, *known[0]) from error

    made = checkpoint(call, *tensors, use_reentrant=False, **contexts)
    state.after(before)
    draws.drop_unchanged()
    return made


def tensor_version(tensor: torch.Tensor) -> tuple[int, int]:
    """Storage of a tensor, and how often it was changed in place."""
    return int(tensor.untyped_storage()._cdata), version_of(tensor)


def check_unchanged(
    path: str, given: Sequence[torch.Tensor], versions: Sequence[tuple[int, int]]
) -> None:
    """Check that tensors saved for a block have the versions that it was given.

    Autograd does that itself, but not for what is kept by hooks: inside of another checkpoint.

    Raises
    ------
    RewriteError
        If one was changed in place.
    """
    for tensor, (storage, version) in zip(given, versions, strict=True):
        now_storage, now = tensor_version(tensor)
        # What the other one computed again counts as the first time; a copy begins at 0.
        if now != version and (now_storage == storage or now):
            shape = "x".join(map(str, tensor.shape))
            reason = f"the tensor of {shape} that it was given is changed in place later"
            raise RewriteError(path, _AGAIN, reason)
