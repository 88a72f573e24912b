"""Changes how a module runs in training: what it keeps, and what it computes again.

A module is changed by a ``forward`` of its own in its instance dict, so the names of its
parameters, its hooks and its class stay as they are; `untreat` takes it away again. Without
gradients a treated module runs as it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from .compress import compressor_named
from .keep import offloaded, packed_inputs
from .states import read_states, stateful, write_states

aten = torch.ops.aten

Kind = Literal["checkpoint", "selective", "pack", "offload"]
"""Compute all again; all but convolutions and products; compress inputs; keep on the host."""

DEAR = frozenset(
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
class Treatment:
    """What is done with a module."""

    kind: Kind
    compressors: tuple[str, ...] = ()
    """Of the tensors among its arguments, in order: names of compressors, or "none"."""
    parts: int = 1
    """In how many parts of the first axis of its arguments (time, or batch) it is run."""

    def __str__(self) -> str:
        text: str = self.kind
        packed = [name for name in self.compressors if name != "none"]
        if packed:
            text += f", inputs as {' and '.join(dict.fromkeys(packed))}"
        if self.parts > 1:
            text += f", in {self.parts} parts"
        return text

    def in_parts(self, parts: int) -> Treatment:
        """Return the same in a number of parts."""
        return replace(self, parts=parts)


Treatments = Mapping[str, Treatment]
"""By dotted path of the module."""


class Treated:
    """A module's forward, treated."""

    def __init__(self, module: nn.Module, treatment: Treatment) -> None:
        self.module = module
        self.treatment = treatment
        self.inner = module.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        parts = self.treatment.parts
        if parts == 1:
            return self._whole(args, kwargs)
        tensors = [a for a in args if torch.is_tensor(a)]
        size = tensors[0].shape[0] if tensors else 0
        if size < parts:
            return self._whole(args, kwargs)
        cut = [
            a.tensor_split(parts) if torch.is_tensor(a) and a.dim() and a.shape[0] == size else None
            for a in args
        ]
        results = []
        for part in range(parts):
            some = tuple(a if c is None else c[part] for a, c in zip(args, cut, strict=True))
            results.append(self._whole(some, kwargs))
        return _joined(results)

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind = self.treatment.kind
        keeping = self._keeping(args)
        if kind in ("pack", "offload"):
            with keeping:
                return self._plain(*args, **kwargs)
        layers = stateful(self.module)
        states = read_states(layers)
        n_states = len(states)

        def run(*given: Any) -> Any:
            write_states(layers, list(given[:n_states]))
            made = self._plain(*given[n_states:], **kwargs)
            return made, read_states(layers)

        with keeping:
            made, after = checkpoint(
                run, *states, *args, use_reentrant=False, context_fn=self._contexts
            )
        write_states(layers, after)
        return made

    def _keeping(self, args: tuple[Any, ...]) -> AbstractContextManager[Any]:
        if self.treatment.kind == "offload":
            return offloaded(self.module)
        tensors = [a for a in args if torch.is_tensor(a)]
        found = [compressor_named(name) for name in self.treatment.compressors]
        if not any(found):
            return nullcontext()
        return packed_inputs(tensors, found)

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        again: AbstractContextManager[Any] = _as_the_first_time(self.module)
        if self.treatment.kind == "checkpoint":
            return nullcontext(), again
        first, second = create_selective_checkpoint_contexts(_policy)
        return first, _both(again, second)


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in DEAR else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(outer)
        stack.enter_context(inner)
        yield


@contextmanager
def _as_the_first_time(module: nn.Module) -> Iterator[None]:
    """Compute again without a trace: running statistics and states stay as they are."""
    layers = stateful(module)
    states = read_states(layers)
    norms = [
        m
        for m in module.modules()
        if isinstance(m, nn.modules.batchnorm._NormBase) and m.training and m.track_running_stats
    ]
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        # The same tensors are saved as the first time, so the statistics must be there.
        norm.momentum = 0.0
        norm._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for norm, (momentum, n_batches) in zip(norms, kept, strict=True):
            norm.momentum = momentum
            norm._buffers["num_batches_tracked"] = n_batches
        write_states(layers, states)


def _joined(results: list[Any]) -> Any:
    first = results[0]
    if torch.is_tensor(first):
        return torch.cat(results)
    return type(first)(_joined([r[i] for r in results]) for i in range(len(first)))


def treat(model: nn.Module, treatments: Treatments) -> None:
    """Treat modules, in place.

    Raises
    ------
    KeyError
        If there is no module of a name.
    """
    modules = dict(model.named_modules())
    for path, treatment in treatments.items():
        module = modules[path]
        # nn.Module.__setattr__ is passed by: it has no say over a plain callable anyway.
        module.__dict__["forward"] = Treated(module, treatment)


def untreat(model: nn.Module) -> None:
    """Take all treatments away."""
    for module in model.modules():
        own = module.__dict__.get("forward")
        while isinstance(own, Treated):
            own = own.inner
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own


__all__ = ["DEAR", "Kind", "Treatment", "Treatments", "treat", "untreat"]
