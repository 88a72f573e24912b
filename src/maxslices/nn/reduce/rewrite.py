"""Rewrites of modules, which change the tensors that a module keeps for its backward pass.

A module is rewritten by a ``forward`` in its instance dict, so its class, hooks and parameter names
do not change. `undo_rewrites` removes it. Without gradients, a rewritten module runs as before.
Rewrites may be nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Literal

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ..nn_errors import RewriteError
from ..replay.nested import concat_outputs, map_leaves, tensors_in
from .kept_tensors import compressor_named, offloaded, packed_inputs
from .recomputation import BlockState, StateWatch, recomputed
from .study import ModuleRange, children_of, range_at

aten = torch.ops.aten

_KEPT: dict[str, Any] = {"respect_saved_tensors_hooks": False}
"""Hooks around a selective checkpoint neither pack nor offload the results that it keeps. Newer
versions of torch have this argument, and warn without it."""
_KEPT = {name: value for name, value in _KEPT.items() if name in signature(checkpoint).parameters}

_GRAPHS_CHANGE_ONCE = [int(part) for part in torch.__version__.split(".")[:2]] >= [2, 9]
"""True if compiled models update running statistics once, even if they are recomputed (torch 2.9).
torch 2.6 does not update them at all, so compiling such a model is an error there."""

Kind = Literal["checkpoint", "selective", "offload", "split"]
"""Recompute everything, recompute everything except convolutions and matrix products, keep saved
tensors on the host, or run in parts without recomputation."""

EXPENSIVE_OPS = frozenset(
    {
        aten.convolution.default,
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.baddbmm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)
"""Operators whose results a selective checkpoint keeps."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rewrite of one module."""

    kind: Kind
    compressors: tuple[str, ...] = ()
    """Compressors of its tensor arguments, in order: names, or "none"."""
    parts: int = 1
    """Number of parts along the first axis of its arguments (time or batch)."""

    def __str__(self) -> str:
        text: str = self.kind
        packed = [name for name in self.compressors if name != "none"]
        if packed:
            text += f", inputs as {' and '.join(dict.fromkeys(packed))}"
        if self.parts > 1:
            text += f", in {self.parts} parts"
        return text


Rewrites = Mapping[str, Rewrite]
"""Rewrites by dotted path of the module."""


class Rewritten:
    """Rewritten forward of a module."""

    def __init__(self, module: nn.Module, rewrite: Rewrite, path: str) -> None:
        self.module = module
        self.rewrite = rewrite
        self.path = path
        self.inner = module.__dict__.get("forward")
        self.state = BlockState(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rewritten module, or without gradients the original one."""
        if not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        if not is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
            raise RewriteError(
                self.path, "called inside of torch.func", "it saves tensors by hooks of autograd",
                "Undo the reduction with `restore`, or differentiate by torch.autograd",
            )  # fmt: skip
        if self.rewrite.parts == 1:
            return self._whole(args, kwargs)
        return self._in_parts(args, kwargs)

    def _in_parts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run parts of the first axis one after the other, and concatenate their results.

        Raises
        ------
        RewriteError
            If a part changes state that the whole batch would change once.
        """
        parts = self.rewrite.parts
        tensors = tensors_in((args, kwargs))
        size = tensors[0].shape[0] if tensors and tensors[0].dim() else 0
        if size < parts:
            return self._whole(args, kwargs)
        # With `tensor_split`, the gradient of each part would be as large as the whole gradient.
        sizes = [size // parts + (part < size % parts) for part in range(parts)]
        # spikingjelly's modules have the number of arguments that are sequences.
        n_cut = getattr(self.module, "n_seq_inputs", len(tensors))
        cut = [
            a.split(sizes) if i < n_cut and a.dim() and a.shape[0] == size else (a,) * parts
            for i, a in enumerate(tensors)
        ]
        watch = None if is_compiling() else StateWatch(self.state)
        results = []
        for part in range(parts):
            pieces = iter(cut)
            some = map_leaves(
                lambda a: next(pieces)[part] if torch.is_tensor(a) else a,  # noqa: B023
                (args, kwargs),
            )
            results.append(self._whole(*some))
            changed = "" if watch is None else watch.changed_by_part()
            if changed:
                reason = f"its forward pass changes {changed}, which each part would do once"
                raise RewriteError(self.path, f"run in {parts} parts", reason)
        return concat_outputs(results)

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._keeping(args):
            if self.rewrite.kind in ("offload", "split"):
                return self._plain(*args, **kwargs)
            contexts = {}
            if self.rewrite.kind == "selective":
                selective = partial(create_selective_checkpoint_contexts, _policy)
                contexts = {"context_fn": selective, **_KEPT}
            if not is_compiling() or (self.state.norms and not _GRAPHS_CHANGE_ONCE):
                return recomputed(self._plain, self.state, self.path, args, kwargs, contexts)
            # Compilers handle buffers themselves. Arguments that are one object stay one.
            single: list[Any] = []
            positions: list[int] = []
            for a in args:  # torch.compile may break its graph at `id`
                same = [i for i, other in enumerate(single) if other is a]
                positions.append(same[0] if same else len(single))
                if not same:
                    single.append(a)

            def run(*unique: Any) -> Any:
                return self._plain(*(unique[i] for i in positions), **kwargs)

            return checkpoint(run, *single, use_reentrant=False, **contexts)

    def _keeping(self, args: tuple[Any, ...]) -> AbstractContextManager[Any]:
        if self.rewrite.kind == "offload":
            return offloaded(self.module)
        tensors = [a for a in args if torch.is_tensor(a)]
        compressors = [compressor_named(name) for name in self.rewrite.compressors]
        if not any(compressors):
            return nullcontext()
        return packed_inputs(tensors, compressors)


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in EXPENSIVE_OPS else CheckpointPolicy.PREFER_RECOMPUTE


class RewrittenRanges:
    """Forward of a Sequential with rewritten ranges of its children."""

    def __init__(self, module: nn.Module, runs: Sequence[tuple[ModuleRange, Rewrite]]) -> None:
        self.inner = module.__dict__.get("forward")
        self.pieces: list[Any] = []
        children = list(module._modules.values())
        waiting = sorted(runs, key=lambda each: (each[0].first, -each[0].end))
        at = 0
        while waiting:
            run, rewrite = waiting.pop(0)
            if run.first < at:
                raise ValueError(f"{run.path} overlaps another range that is rewritten")
            self.pieces += children[at : run.first]
            # This container is outside the model, so no parameter name changes.
            part = nn.Sequential(*(c for c in children[run.first : run.end] if c is not None))
            inside = [each for each in waiting if each[0].end <= run.end]
            waiting = [each for each in waiting if each[0].end > run.end]
            if inside:
                moved = [
                    (ModuleRange(run.path, r.first - run.first, r.end - run.first), t)
                    for r, t in inside
                ]
                part.__dict__["forward"] = RewrittenRanges(part, moved)
            self.pieces.append(Rewritten(part, rewrite, run.path))
            at = run.end
        self.pieces += children[at:]

    def __call__(self, x: Any) -> Any:
        """Run the pieces one after the other."""
        for piece in self.pieces:
            x = piece(x)
        return x


def apply_rewrites(model: nn.Module, rewrites: Rewrites) -> None:
    """Rewrite modules, and ranges of them, in place.

    Raises
    ------
    KeyError
        If a path does not name a module or range.
    ValueError
        If ranges overlap and neither is inside the other.
    """
    modules = dict(model.named_modules())
    runs: dict[str, list[tuple[ModuleRange, Rewrite]]] = {}
    for path, rewrite in rewrites.items():
        run = None if path in modules else range_at(path)
        if run is not None:
            children_of(run, modules)
            runs.setdefault(run.parent, []).append((run, rewrite))
    for path, some in runs.items():
        modules[path].__dict__["forward"] = RewrittenRanges(modules[path], some)
    for path, rewrite in rewrites.items():
        if path in modules or range_at(path) is None:
            module = modules[path]
            # A plain callable needs no registration by nn.Module.__setattr__.
            module.__dict__["forward"] = Rewritten(module, rewrite, path)


def undo_rewrites(model: nn.Module) -> None:
    """Undo all rewrites of a model."""
    for module in model.modules():
        own = module.__dict__.get("forward")
        while isinstance(own, Rewritten | RewrittenRanges):
            own = own.inner
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own
