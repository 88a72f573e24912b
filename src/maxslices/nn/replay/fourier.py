"""Copies and workspaces of torch's Fourier transforms on CUDA.

torch passes tensors to cuFFT with the transformed axes last and all other axes merged into one. A
tensor in another order is copied, and so is the input of a transform to real numbers, which cuFFT
overwrites. Each plan has a workspace from torch's allocator while it runs. The rules are those of
``ATen/native/cuda/SpectralOps.cpp`` and ``CuFFTPlanCache.h`` (torch 2.11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten

MOST_AXES = 3
"""Most axes of one plan (``cufft_max_ndim``)."""
TRANSFORMS = {
    aten._fft_c2c.default: "c2c",
    aten._fft_r2c.default: "r2c",
    aten._fft_c2r.default: "c2r",
}


class FourierPlan(NamedTuple):
    """Plan of cuFFT that a call of an operator runs."""

    kind: str
    shape: tuple[int, ...]
    """Number of transforms, and the lengths of their axes on the real side."""
    copied_bytes: tuple[int, ...]
    """Bytes of each copy of its input that is alive while it runs."""


def plans_of(func: Any, args: Any) -> list[FourierPlan]:
    """Plans of a call, in the order in which they run."""
    kind, x, dims = TRANSFORMS[func], args[0], [dim % args[0].dim() for dim in args[1]]
    if not dims or not x.is_meta or not x.numel():
        return []
    last = args[3] if kind == "c2r" else x.shape[dims[-1]]
    return list(_plans(kind, x, dims, last))


def _plans(kind: str, x: torch.Tensor, dims: list[int], last: int) -> Iterator[FourierPlan]:
    if kind == "c2c":
        ordered = sorted(dims, key=lambda dim: -x.stride()[dim])
        for end in range(len(ordered), 0, -MOST_AXES):
            yield _plan("c2c", x, ordered[max(0, end - MOST_AXES) : end])
        return
    # A real transform is one plan, except where torch runs several because they are faster.
    if len(dims) <= MOST_AXES and dims[:2] != [0, 1]:
        yield _plan(kind, x, dims, last)
    elif kind == "r2c":
        yield _plan("r2c", x, dims[-1:], last)
        yield from _plans("c2c", _spectrum(x, dims[-1]), dims[:-1], 0)
    else:
        yield from _plans("c2c", x, dims[:-1], 0)
        yield _plan("c2r", x, dims[-1:], last)


def _plan(kind: str, x: torch.Tensor, dims: Sequence[int], last: int | None = None) -> FourierPlan:
    copies = []
    n_bytes = x.numel() * x.element_size()
    if kind == "c2r":
        x = x.contiguous() if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
        copies.append(n_bytes)
    batch_dims = sorted(set(range(x.dim())) - set(dims), key=lambda dim: -x.stride()[dim])
    sizes = [x.shape[dim] for dim in dims]
    flat = x.permute(*batch_dims, *dims).reshape(-1, *sizes)
    if flat.untyped_storage()._cdata != x.untyped_storage()._cdata or _must_be_copied(flat):
        copies.append(n_bytes)
    if last is not None:
        sizes[-1] = last
    return FourierPlan(kind, (flat.shape[0], *sizes), tuple(copies))


def _must_be_copied(x: torch.Tensor) -> bool:
    """True if cuFFT does not support the strides: 0, or not multiples of each other."""
    step = x.stride(-1)
    if step <= 0 or (x.stride(0) == 0 and x.shape[0] > 1):
        return True
    for axis in range(x.dim() - 2, 0, -1):
        if x.shape[axis] == 1:
            continue
        if x.stride(axis) <= 0 or x.stride(axis) % step:
            return True
        step = x.stride(axis)
    return False


def _spectrum(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Complex result of a transform of real numbers, of half the length."""
    sizes = [n // 2 + 1 if axis == dim else n for axis, n in enumerate(x.shape)]
    return torch.empty(sizes, dtype=x.dtype.to_complex(), device=x.device)


def transform_copies(func: Any, args: Any) -> list[int]:
    """Bytes that a transform holds in addition to input and result while a plan runs.

    If a call runs several plans, they write alternately to the result and to a second buffer.
    """
    plans = plans_of(func, args)
    if not plans:
        return []
    copies = [*max((plan.copied_bytes for plan in plans), key=sum)]
    if len(plans) > 1:
        x = _spectrum(args[0], args[1][-1]) if func is aten._fft_r2c.default else args[0]
        copies.append(x.numel() * x.element_size())
    return copies


def transform_calls(func: Any, args: Any, result: Any) -> list[tuple[Any, ...]]:
    """Describe the plans of a call, as `OperatorCall` does."""
    dtype = str(args[0].dtype).removeprefix("torch.")
    return [
        ("Fourier transform", func.name(), (plan.shape,), dtype, plan.kind, False)
        for plan in plans_of(func, args)
    ]
