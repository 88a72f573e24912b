"""Locality of modules along an axis, found by running them.

NaN on one side of a cut shows which results depend on that side. Bands are then compared with
the whole on numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..step.layer_state import stateful
from .bands import BandWindow, in_bands
from .split import batch_statistics

STRIDES = (1, 2, 4, 8, 16, 32)
"""Strides of the grid that are tried: networks of up to five levels that halve each axis."""

SIDES = (64, 128, 256)
"""Approximate sizes along the axis, tried in turn until the dependence ends within."""
OTHERS = (8, 32)
"""Approximate sizes of the other axes; the larger ones are for layers that refuse small images."""
MOST_FLOPS = 1e9
"""Operations of a module on the smallest image beyond which it is not run: a test has some ten runs
in double precision, and two cores do 5e9 to 1e10 operations a second."""
GLOBAL_LAYERS = (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm, nn.MultiheadAttention)
"""Layers whose results depend on the whole image."""
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError, NotImplementedError)


def may_be_local(module: nn.Module) -> bool:
    """True if no layer is known to carry states or to look at the whole batch or image."""
    return not (
        stateful(module)
        or batch_statistics(module)
        or any(isinstance(each, GLOBAL_LAYERS) for each in module.modules())
    )


def find_band_window(
    module: nn.Module, shape: Sequence[int], axis: int, *, train: bool = False
) -> BandWindow | None:
    """Dependence of a module's result along an axis; None if bands would not be exact.

    Parameters
    ----------
    module : torch.nn.Module
        Module in the mode in which it will run; a copy is run on the CPU.
    shape : sequence of int
        Shape of its only argument: (batch, channels, axes).
    axis : int
        Axis of the image, counted from the last (-1).
    train : bool
        Whether the whole module is put into train mode.
    """
    if not may_be_local(module):
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            # Without data, most modules that are not local fail at once.
            empty = _copied(module, "meta", train)
            tried = next((t for t in _sizes(shape, axis) if _runs(empty, t[0])), [])
            real = _copied(module, "cpu", train) if tried else empty
        except _ERRORS:
            return None
        if batch_statistics(real):
            return None
        for sizes in tried:
            try:
                found = _marked(real, sizes, axis)
            except _ERRORS:
                return None
            if isinstance(found, BandWindow):
                return found
            if not found:
                return None
    return None


def _sizes(shape: Sequence[int], axis: int) -> Iterator[list[list[int]]]:
    """Yield small images like a large one, with one axis of several lengths."""
    most = STRIDES[-1]
    for about in OTHERS:
        made = []
        for side in SIDES:
            sizes = [1, shape[1], *(min(s, about + s % about) for s in shape[2:])]
            sizes[axis] = side + shape[axis] % most
            if sizes[axis] <= shape[axis] + most:
                made.append(sizes)
        if made:
            yield made


def _runs(empty: nn.Module, sizes: list[int]) -> bool:
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            empty(torch.empty(sizes, dtype=torch.float64, device="meta"))
    except _ERRORS:
        return False
    return counter.get_total_flops() <= MOST_FLOPS


def _copied(module: nn.Module, device: str, train: bool) -> nn.Module:
    """Copy in double precision, which takes no memory on the module's device."""
    known: dict[int, object] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
        made = tensor.detach().to(device, dtype, copy=True)
        is_parameter = isinstance(tensor, nn.Parameter)
        known[id(tensor)] = nn.Parameter(made, False) if is_parameter else made
    made_of_it = copy.deepcopy(module, known)
    return made_of_it.train() if train else made_of_it


def _marked(real: nn.Module, sizes: list[int], axis: int) -> BandWindow | bool:
    """Window; True if a larger image may have one, False if there is none."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sizes, dtype=torch.float64, generator=generator)
    randoms = torch.get_rng_state()
    buffers = [b.clone() for b in real.buffers()]
    whole = real(x.clone())
    if not torch.is_tensor(whole) or whole.dim() != x.dim() or not whole.is_floating_point():
        return False
    if not torch.equal(randoms, torch.get_rng_state()):
        return False  # other random numbers would be drawn for each band
    if any(not torch.equal(a, b) for a, b in zip(buffers, real.buffers(), strict=True)):
        return False
    n, length = sizes[axis], whole.shape[axis]
    at = n // 2 // STRIDES[-1] * STRIDES[-1]
    reached = []
    for first, end, far in ((0, at, -1), (at, n, 0)):
        marked = x.clone()
        marked.narrow(axis, first, end - first).fill_(math.nan)
        hit = real(marked).isnan().movedim(axis, 0).flatten(1).any(dim=1)
        if bool(hit[far]):
            return True
        reached.append(hit.nonzero()[:, 0])
    if not all(len(each) for each in reached):
        return False
    clean_from, clean_until = int(reached[0][-1]) + 1, int(reached[1][0])
    for stride in STRIDES:
        try:
            step = length - real(x.narrow(axis, stride, n - stride).clone()).shape[axis]
        except _ERRORS:
            continue  # it runs on sizes of a grid alone
        if step < 1 or at * step % stride:
            continue
        there = at * step // stride
        found = BandWindow(
            axis, stride, step, max(clean_from - there, 0), max(there - clean_until, 0),
            n % stride, length - n // stride * step,
            tuple(path for path, each in real.named_modules() if not each.training),
        )  # fmt: skip
        # With three bands, none reads the whole image.
        if all(_is_exact(real, x, whole, found, parts) for parts in (3, min(7, found.most(n)))):
            return found
    return True


def _is_exact(
    real: nn.Module, x: torch.Tensor, whole: torch.Tensor, window: BandWindow, parts: int
) -> bool:
    """True if bands give the result of the whole, but for rounding."""
    if not 2 < parts <= window.most(x.shape[window.axis]):
        return False
    try:
        made = in_bands(real, x, window, parts, ())
    except _ERRORS:
        return False
    if made.shape != whole.shape:
        return False
    scale = float(whole.abs().max())
    return bool(torch.allclose(made, whole, rtol=0, atol=1e-10 * scale))
