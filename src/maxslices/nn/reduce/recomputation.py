"""Recomputation of a block with the arguments and state of its first pass.

A block is recomputed with the arguments, buffers and attributes that it had before its first pass.
Their current values are put back afterwards. The first call shows which parts of the state change.
They are compared by identity and version, which also works for tensors without data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from ...system.process_state import HostDraws
from ..nn_errors import RewriteError
from ..replay.object_copies import ObjectCopies, iter_contents, same_items, version_of

_OWN_NAMES = frozenset({*vars(nn.Module()), "forward"})
"""Attributes that torch keeps for every module, and the rewrite."""
_MISSING: Any = object()
_NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.SyncBatchNorm,
)
_NORM_FORWARDS = [norm.forward for norm in _NORMS]
CARRIED_NAMES = frozenset({"_memories"})
"""Attributes with states that layers carry from one part of the time steps to the next."""
_ATTRIBUTE = "."
"""Prefix of the marks of attributes."""


class _Slot(NamedTuple):
    """A buffer, a parameter or an attribute."""

    number: int
    """Index of the module in the block."""
    table: str
    """Dict of the module that contains it: "_buffers", "_parameters", or "" for an attribute."""
    name: str


class _Fixed(NamedTuple):
    """A buffer or parameter that is expected not to change."""

    tensor: torch.Tensor | None
    version: int
    address: int


@dataclass(slots=True)
class StateBefore:
    """State before a first pass, which must be the same when the block is recomputed."""

    slots: list[_Slot]
    copies: ObjectCopies
    """Copies of the values of the slots."""
    leaves: list[Any]
    """Leaves of the copies. Tensors that may be changed in place are cloned."""
    in_place: set[int]
    """Numbers of the clones."""
    fixed: list[_Fixed]
    versions: list[int]
    """Versions of the leaves that are tensors, 0 for all other leaves."""
    held: list[list[Any]]
    """Values of the slots, for the comparison after the first call."""
    added: list[_Slot] = field(default_factory=list)
    """Attributes that did not exist before."""
    changed: str = ""
    """Path of a buffer or parameter that changed where it never had before."""

    def changed_tensors(self) -> set[int]:
        """Numbers of tensors that were changed in place since."""
        return {i for i in self.in_place if self._is_changed(self.copies.leaves[i], i)}

    def keep(self, indices: list[int]) -> None:
        """Keep only the slots that change, and their leaves."""
        self.slots = [self.slots[index] for index in indices]
        kept = self.copies.keep(indices)
        originals, clones = self.copies.leaves, self.leaves
        self.leaves = [
            None if i not in kept else clones[i] if i in self.in_place else leaf
            for i, leaf in enumerate(originals)
        ]
        self.held = []

    def _is_changed(self, tensor: torch.Tensor, number: int) -> bool:
        if version_of(tensor) != self.versions[number]:
            return True
        # Operators such as batch norm do not raise the version of the tensors that they change.
        return not tensor.is_meta and not torch.equal(tensor, self.leaves[number])


def is_plain_norm(module: nn.Module) -> bool:
    """True for torch's norms, which do not read their running statistics in train mode."""
    return getattr(type(module), "forward", None) in _NORM_FORWARDS


class BlockState:
    """Buffers and attributes of a block and of all modules inside.

    Running statistics of torch's own norms are omitted, as nothing reads them in train mode.
    """

    def __init__(self, module: nn.Module) -> None:
        named = [*module.named_modules()]
        self.modules = [each for _, each in named]
        self.paths = [path for path, _ in named]
        self.norms = [each for each in self.modules if is_plain_norm(each)]
        self.modes: list[bool] = []
        """Modes of the modules, train or eval, for which the changes are known."""
        self.changing: dict[_Slot, bool] | None = None
        """Slots that the forward pass changes, and whether in place; None before the first call."""
        self.staying: list[_Slot] = []
        """Parameters and, after the first call, the buffers that do not change."""

    def before(self) -> StateBefore:
        """Read the state before a first pass, with clones of tensors that may change in place."""
        modes = [module.training for module in self.modules]
        if modes != self.modes:
            self.modes, self.changing = modes, None
            self.staying = [
                _Slot(number, "_parameters", name)
                for number, module in enumerate(self.modules)
                for name in module._parameters
            ]
        slots = [*(self._slots() if self.changing is None else self.changing)]
        originals = [self._original(slot) for slot in slots]
        copies = ObjectCopies(originals)
        in_place = set[int]()
        for index, slot in enumerate(slots):
            if self.changing is None or self.changing[slot]:
                in_place |= {i for i in copies.leaves_of(index) if _is_own(copies.leaves[i])}
        held = [] if self.changing is not None else [[*iter_contents(each)] for each in originals]
        leaves = [_clone(leaf) if i in in_place else leaf for i, leaf in enumerate(copies.leaves)]
        versions = [version_of(leaf) if torch.is_tensor(leaf) else 0 for leaf in copies.leaves]
        return StateBefore(slots, copies, leaves, in_place, self._fixed(), versions, held)

    def after(self, before: StateBefore) -> None:
        """Compare the state after a first pass with `before`, and keep only the changed slots."""
        for old, now, slot in zip(before.fixed, self._fixed(), self.staying, strict=True):
            if old.tensor is not now.tensor or old[1:] != now[1:]:
                before.changed = self._path(slot)
                if slot.table == "_buffers":
                    assert self.changing is not None
                    self.changing[slot] = True  # from the next call on
        if self.changing is None:
            self._learn(before)
        elif before.changed:
            self.staying = [slot for slot in self.staying if slot not in self.changing]
        before.copies.leaves = []  # the tensors to restore are in `before.leaves`

    def changed_since(self, before: StateBefore) -> str:
        """Path of a buffer or parameter that was changed after the first pass; or ""."""
        if before.changed or before.copies.changed():
            return before.changed or before.copies.changed()
        for old, slot in zip(before.fixed, self.staying, strict=True):
            if old.tensor is not None and version_of(old.tensor) != old.version:
                return self._path(slot)
        for i, leaf in enumerate(before.leaves):
            is_same = i in before.in_place or not torch.is_tensor(leaf)
            if not is_same and version_of(leaf) != before.versions[i]:
                return f"tensor of {'x'.join(map(str, leaf.shape))} in an attribute"
        return ""

    def read_marks(self) -> dict[str, list[Any]]:
        """Values and versions of each buffer, parameter and attribute, by path.

        States that layers carry from part to part are omitted.
        """
        slots = [*self._slots()]
        slots += [
            _Slot(number, "_parameters", name)
            for number, module in enumerate(self.modules)
            for name in module._parameters
        ]
        marks: dict[str, list[Any]] = {}
        for slot in slots:
            if slot.name not in CARRIED_NAMES:
                held = [*iter_contents(self._original(slot))]
                versions = [version_of(item) for item in held if torch.is_tensor(item)]
                marks[("" if slot.table else _ATTRIBUTE) + self._path(slot)] = [*held, *versions]
        return marks

    @contextmanager
    def restored(self, before: StateBefore) -> Iterator[None]:
        """Context in which the state is that before the first pass."""
        now = [self._original(slot) for slot in before.slots]
        # A second backward pass needs the clones again.
        fresh = [
            _clone(leaf) if i in before.in_place else leaf for i, leaf in enumerate(before.leaves)
        ]
        replaced = [
            (slot, self._original(slot), old.tensor)
            for old, slot in zip(before.fixed, self.staying, strict=True)
            if self._table(slot).get(slot.name) is not old.tensor
        ]  # torch.func.functional_call replaces parameters for the time of a call
        added = {slot: self._original(slot) for slot in before.added}
        for slot, old in zip(before.slots, before.copies.rebuild(fresh), strict=True):
            self._put(slot, old)
        for slot in added:
            self._put(slot, _MISSING)
        for slot, _, old_tensor in replaced:
            self._put(slot, old_tensor)
        norms = [m for m in self.norms if m.training and m.track_running_stats]
        kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            # Recomputation must save the same tensors, so statistics are kept but not updated.
            norm.momentum = 0.0
            norm._buffers["num_batches_tracked"] = None
        try:
            yield
        finally:
            for norm, (momentum, n_batches) in zip(norms, kept, strict=True):
                norm.momentum = momentum
                norm._buffers["num_batches_tracked"] = n_batches
            for slot, new in zip(before.slots, now, strict=True):
                self._put(slot, new)
            for slot, new in added.items():
                self._put(slot, new)
            for slot, new, _ in replaced:
                self._put(slot, new)

    def _learn(self, before: StateBefore) -> None:
        changing: dict[_Slot, bool] = {}
        indices: list[int] = []
        changed = before.changed_tensors()
        for index, (slot, held) in enumerate(zip(before.slots, before.held, strict=True)):
            is_in_place = not changed.isdisjoint(before.copies.leaves_of(index))
            if is_in_place or not same_items(held, [*iter_contents(self._original(slot))]):
                changing[slot] = is_in_place
                indices.append(index)
                if not is_in_place:
                    before.in_place -= before.copies.leaves_of(index)
        before.added = [slot for slot in self._slots() if slot not in before.slots]
        before.keep(indices)
        self.changing = changing | dict.fromkeys(before.added, False)
        self.staying += [
            slot for slot in self._slots() if slot.table == "_buffers" and slot not in self.changing
        ]
        before.fixed = self._fixed()

    def _table(self, slot: _Slot) -> dict[str, Any]:
        own: dict[str, Any] = self.modules[slot.number].__dict__
        return own[slot.table] if slot.table else own

    def _path(self, slot: _Slot) -> str:
        path = self.paths[slot.number]
        return f"{path}.{slot.name}" if path else slot.name

    def _slots(self) -> Iterator[_Slot]:
        for number, module in enumerate(self.modules):
            for name in () if is_plain_norm(module) else [*module._buffers]:
                yield _Slot(number, "_buffers", name)
            for name in [*module.__dict__]:
                if name not in _OWN_NAMES:
                    yield _Slot(number, "", name)

    def _original(self, slot: _Slot) -> Any:
        return self._table(slot).get(slot.name, _MISSING)

    def _put(self, slot: _Slot, value: Any) -> None:
        if value is _MISSING:
            self._table(slot).pop(slot.name, None)
        else:
            self._table(slot)[slot.name] = value

    def _fixed(self) -> list[_Fixed]:
        tensors = [self._table(slot).get(slot.name) for slot in self.staying]
        return [
            _Fixed(t, 0, 0) if t is None else _Fixed(t, version_of(t), t.data_ptr())
            for t in tensors
        ]


class StateWatch:
    """Comparison of a block's state before and after each part of a batch.

    A pass of the whole batch would change the state once. An attribute that only the first part
    changes is a constant that it has computed, such as a mask.
    """

    def __init__(self, state: BlockState) -> None:
        self._state = state
        self._marks = state.read_marks()
        self._n_parts = 0

    def changed_by_part(self) -> str:
        """Path of a buffer, parameter or attribute that the part changed; or ""."""
        norms = self._state.norms
        statistics = next((norm for norm in norms if takes_statistics(norm)), None)
        if statistics is not None:
            path = self._state.paths[self._state.modules.index(statistics)]
            return f"the statistics of {path or 'the norm'}"
        before, self._marks = self._marks, self._state.read_marks()
        self._n_parts += 1
        for path in {**before, **self._marks}:
            if self._n_parts == 1 and path.startswith(_ATTRIBUTE):
                continue
            if not same_items(before.get(path, []), self._marks.get(path, [])):
                return path.removeprefix(_ATTRIBUTE)
        return ""


def takes_statistics(module: nn.Module) -> bool:
    """True for a norm whose results or buffers differ between parts of a batch and the whole."""
    is_batch = isinstance(module, nn.modules.batchnorm._BatchNorm)
    is_norm = isinstance(module, nn.modules.batchnorm._NormBase)
    return is_norm and module.training and (is_batch or bool(module.track_running_stats))


def _clone(leaf: Any) -> Any:
    if not _is_own(leaf):
        return leaf
    with _disable_current_modes():  # a selective checkpoint would count them
        clone = leaf.detach().clone()
    return clone.requires_grad_() if leaf.requires_grad else clone


def _is_own(leaf: Any) -> bool:
    """True for a tensor other than a parameter; parameters are expected not to change."""
    return torch.is_tensor(leaf) and not isinstance(leaf, nn.Parameter)


_AGAIN = "computed again"
_GIVEN: Any = object()
"""Placeholder of a tensor that autograd keeps."""
_REFUSALS = {
    "cached during selective activation checkpoint has been mutated": (
        "a result that it keeps is changed in place later",
        "",
    ),
    "backward an extra time": (
        "the results that it keeps serve one backward pass only",
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
        Arguments. Containers and objects of Python's classes are copied at the call, see
        `ObjectCopies`, so a block that fills a cache is recomputed with the cache before the call.
        Other objects are not copied. Tensors are saved by autograd.
    contexts : mapping
        More arguments of `torch.utils.checkpoint.checkpoint`.

    Raises
    ------
    RewriteError
        In the backward pass, if an argument, buffer or parameter was changed in place after the
        first pass.
    """
    arguments = ObjectCopies([args, kwargs])
    tensors = [leaf for leaf in arguments.leaves if torch.is_tensor(leaf)]
    constants = [_GIVEN if torch.is_tensor(leaf) else leaf for leaf in arguments.leaves]
    arguments.leaves = []  # autograd holds them
    versions = [tensor_version(t) for t in tensors]
    before, draws = state.before(), HostDraws()
    first = [(args, kwargs)]

    def call(*saved: torch.Tensor) -> Any:
        if first:
            own_args, own_kwargs = first.pop()
            return run(*own_args, **own_kwargs)
        check_unchanged(path, saved, versions)
        changed = state.changed_since(before)
        if changed:
            raise RewriteError(path, _AGAIN, f"its {changed} is changed by that, or later")
        changed = arguments.changed()
        if changed:
            reason = f"the {changed} that it was given is changed by that, or later"
            raise RewriteError(path, _AGAIN, reason)
        waiting = iter(saved)
        leaves = [next(waiting) if leaf is _GIVEN else leaf for leaf in constants]
        its_args, its_kwargs = arguments.rebuild(leaves)
        with state.restored(before), draws.again():
            try:
                return run(*its_args, **its_kwargs)
            except RuntimeError as error:
                refusals = [why for text, why in _REFUSALS.items() if text in str(error)]
                if not refusals:
                    raise
                raise RewriteError(path, _AGAIN, *refusals[0]) from error

    output = checkpoint(call, *tensors, use_reentrant=False, **contexts)
    state.after(before)
    draws.drop_unchanged()
    return output


def tensor_version(tensor: torch.Tensor) -> tuple[int, int]:
    """Storage of a tensor, and how often it was changed in place."""
    return int(tensor.untyped_storage()._cdata), version_of(tensor)


def check_unchanged(
    path: str, tensors: Sequence[torch.Tensor], versions: Sequence[tuple[int, int]]
) -> None:
    """Check that tensors saved for a block have the versions of its first pass.

    Autograd checks this itself, except for tensors kept by hooks inside another checkpoint.

    Raises
    ------
    RewriteError
        If one was changed in place.
    """
    for tensor, (storage, version) in zip(tensors, versions, strict=True):
        now_storage, now = tensor_version(tensor)
        # Tensors recomputed by the other checkpoint have their original versions; copies have 0.
        if now != version and (now_storage == storage or now):
            shape = "x".join(map(str, tensor.shape))
            reason = f"the tensor of {shape} that it was given is changed in place later"
            raise RewriteError(path, _AGAIN, reason)
