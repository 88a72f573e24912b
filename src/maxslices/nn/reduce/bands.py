"""A local module in bands of one axis of an image, each with its halo, each computed again.

What a band computes near a cut is wrong: layers pad there as they do at the borders of the
image. As much as may be wrong is cut off, so what is left is the result of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True)
class BandWindow:
    """What results of a local module depend on, along one axis of its argument."""

    axis: int
    """Of the argument and of the result, counted from the last: -1 is that."""
    stride: int
    """Shifting the argument by as many items shifts the result by `step` items."""
    step: int
    before: int
    """Items of a result that depend on what is before a cut, or on padding there."""
    after: int
    """The same of what is behind a cut."""
    uneven: int
    """Remainder of sizes by `stride` for which this was found."""
    base: int
    """Size of the result for an argument of `uneven` items, counted on."""
    frozen: tuple[str, ...] = ()
    """Modules inside that were in eval mode when this was found."""

    def size(self, n: int) -> int:
        """Return the size of the result for an argument of n items."""
        return n // self.stride * self.step + self.base

    @property
    def halo(self) -> tuple[int, int]:
        """Items of the argument that a band reads before and behind its own."""
        before, after = -(-self.before // self.step), -(-self.after // self.step)
        return before * self.stride, after * self.stride

    def most(self, n: int) -> int:
        """Return in how many bands n items can be cut, none thinner than its halo."""
        if n % self.stride != self.uneven:
            return 1
        return max(1, n // self.stride // max(*(-(-h // self.stride) for h in self.halo), 1))

    def cut(self, n: int, parts: int) -> list[Band]:
        """Cut n items into bands.

        Raises
        ------
        ValueError
            If bands would be thinner than their halo.
        """
        if parts > self.most(n):
            raise ValueError(
                f"{parts} bands of {n} items with {self.halo[0]} and {self.halo[1]} around: up to "
                f"{self.most(n)} are no thinner than that"
            )
        units = n // self.stride
        edges = [part * units // parts for part in range(parts + 1)]
        before, after = self.halo
        cuts = []
        for part in range(parts):
            first, end = edges[part] * self.stride, edges[part + 1] * self.stride
            made, made_end = edges[part] * self.step, edges[part + 1] * self.step
            read, read_end = max(first - before, 0), min(end + after, n)
            if part == parts - 1:
                read_end, made_end = n, self.size(n)
            skipped = read // self.stride * self.step
            cuts.append(Band(read, read_end, made, made_end, made - skipped))
        return cuts

    def halo_factor(self, n: int, parts: int) -> float:
        """Return how many items all bands read, as a part of n."""
        return sum(c.read_end - c.read for c in self.cut(n, parts)) / n


class Band(NamedTuple):
    """A band."""

    read: int
    """First item of the argument."""
    read_end: int
    made: int
    """First item of the result."""
    made_end: int
    inside: int
    """The same, in what the band makes."""


def in_bands(
    run: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    window: BandWindow,
    parts: int,
    weights: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Return what ``run(x)`` would, keeping nothing but x.

    Parameters
    ----------
    run : callable
        Local along an axis, without random numbers and states.
    x : tensor
        The argument.
    window : BandWindow
        Of `run`.
    parts : int
        Number of bands.
    weights : sequence of tensor
        All that `run` reads besides, and that needs gradients.
    """
    made: torch.Tensor = _BandedForward.apply(run, window, parts, x, *weights)  # type: ignore[no-untyped-call]
    return made


class _BandedForward(torch.autograd.Function):
    """Writes bands into one result, and adds gradients up in one place for all of them.

    A checkpoint for each band would keep all bands beside what they are put together to.
    """

    @staticmethod
    def forward(ctx: Any, run: Any, window: BandWindow, parts: int, x: Any, *weights: Any) -> Any:
        ctx.run, ctx.axis, ctx.weights = run, window.axis, weights
        ctx.cuts = window.cut(x.shape[window.axis], parts)
        ctx.casting = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in ("cuda", "cpu")
        ]
        ctx.save_for_backward(x)
        whole = None
        for cut in ctx.cuts:
            with _cast_again(ctx.casting):
                made = run(_band(x, window.axis, cut))
            if whole is None:
                shape = list(made.shape)
                shape[window.axis] = window.size(x.shape[window.axis])
                whole = made.new_empty(shape)
            n = cut.made_end - cut.made
            _part(whole, window.axis, cut).copy_(made.narrow(window.axis, cut.inside, n))
            del made
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        axis, weights = ctx.axis, ctx.weights
        needs = ctx.needs_input_grad[3:]
        grads: list[torch.Tensor | None] = [None] * (1 + len(weights))
        if needs[0]:
            grads[0] = torch.zeros_like(x)
        for cut in ctx.cuts:
            with torch.enable_grad(), _cast_again(ctx.casting):
                band = _band(x, axis, cut).requires_grad_(needs[0])
                made = ctx.run(band)
                made = made.narrow(axis, cut.inside, cut.made_end - cut.made)
            wanted = [t for t, need in zip((band, *weights), needs, strict=True) if need]
            its = torch.autograd.grad(made, wanted, _part(grad, axis, cut), allow_unused=True)
            del made, band, wanted
            for place, one in zip((i for i, n in enumerate(needs) if n), its, strict=True):
                if one is None:
                    continue
                before = grads[place]
                if place == 0 and before is not None:
                    before.narrow(axis, cut.read, cut.read_end - cut.read).add_(one)
                elif before is None:
                    grads[place] = one
                else:
                    before.add_(one)
            del its, one
        return None, None, None, *grads


def _band(x: torch.Tensor, axis: int, cut: Band) -> torch.Tensor:
    return x.detach().narrow(axis, cut.read, cut.read_end - cut.read).contiguous()


def _part(whole: torch.Tensor, axis: int, cut: Band) -> torch.Tensor:
    return whole.narrow(axis, cut.made, cut.made_end - cut.made)


def _cast_again(casting: Sequence[tuple[str, torch.dtype, bool]]) -> ExitStack:
    """Cast as in the forward pass; casts of weights are not kept, those lack a gradient."""
    stack = ExitStack()
    for kind, dtype, enabled in casting:
        # A backward pass may be begun where something is cast that the forward pass did not.
        if enabled or torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
    return stack


__all__ = ["Band", "BandWindow", "in_bands"]
