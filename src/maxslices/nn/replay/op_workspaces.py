"""Workspaces and copies of the CUDA kernels of operators."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from . import recurrent
from .fourier import TRANSFORMS, transform_calls, transform_copies
from .op_handlers import masks_in

aten = torch.ops.aten

Described = tuple[Any, str, tuple[tuple[int, ...], ...], str, str, bool]
"""Kind, operator, shapes, dtype, options and whether channels are last, as in `OperatorCall`."""


def calls_of(func: Any, args: Any, result: Any) -> list[Described] | None:
    """Parts of an operator's call that may need workspaces, or None."""
    describe = _DESCRIBED.get(func)
    return None if describe is None else describe(func, args, result)


def _convolution(func: Any, args: Any, result: Any) -> list[Described]:
    x, weight = args[0], args[1]
    if not x.is_meta:
        return []
    options = _options(*args[3:9])
    shapes = (tuple(x.shape), tuple(weight.shape), tuple(result.shape))
    return [("convolution", func.name(), shapes, _name(x.dtype), options, _last(x, weight))]


def _convolution_backward(func: Any, args: Any, result: Any) -> list[Described]:
    grad, x, weight = args[:3]
    if not x.is_meta:
        return []
    options = _options(*args[4:10])
    shapes = (tuple(x.shape), tuple(weight.shape), tuple(grad.shape))
    tail = (func.name(), shapes, _name(x.dtype), options, _last(x, weight))
    kinds = ("input gradient", "weight gradient")
    calls: list[Described] = [
        (kind, *tail) for kind, is_computed in zip(kinds, args[10], strict=False) if is_computed
    ]
    if args[10][2]:
        calls.append(_summed(func, grad, [0, *range(2, grad.dim())]))
    return calls


def _product(func: Any, args: Any, result: Any) -> list[Described]:
    a, b = (args[place] for place in _FACTORS[func])
    if not a.is_meta:
        return []
    shapes = (tuple(a.shape), tuple(b.shape))
    return [("matrix product", func.name(), shapes, _name(a.dtype), "", False)]


def _summed(func: Any, x: torch.Tensor, dims: Any) -> Described:
    axes = {dim % x.dim() for dim in dims} if dims else set(range(x.dim()))
    flags = tuple(int(axis in axes) for axis in range(x.dim()))
    shapes = (tuple(x.shape), tuple(x.stride()), flags)
    return ("sum", func.name(), shapes, _name(x.dtype), "", False)


def _sum(func: Any, args: Any, result: Any) -> list[Described]:
    x = args[0]
    if not x.is_meta or not x.dim():
        return []
    return [_summed(func, x, args[1] if len(args) > 1 else None)]


def _loss(func: Any, args: Any, result: Any) -> list[Described]:
    """Describe a loss whose kernel writes the loss of each item and then sums."""
    x = args[0]
    if not x.is_meta or result.dim() or not x.dim():
        return []
    name, dtype = func.name(), _name(x.dtype)
    shape = tuple(x.shape)
    axes = tuple(1 for _ in shape)
    strides = tuple(torch.empty(shape, device="meta").stride())
    return [("loss", name, (shape, strides, axes), dtype, "", False)]


def _sum_of_loss(func: Any, args: Any, result: Any) -> list[Described]:
    """Describe the sum of a loss whose items are written to the result's own storage."""
    x = args[0]
    return [] if result.dim() or not x.is_meta or not x.dim() else [_summed(func, x, None)]


def _dropout_state(func: Any, args: Any, result: Any) -> list[Described]:
    """Describe the random generator of recurrent layers with dropout."""
    x, dropout, train = args[0], args[11], args[12]
    if not (x.is_meta and train and dropout > 0):
        return []
    return [("dropout state", func.name(), (tuple(x.shape),), _name(x.dtype), "", False)]


_IN_ORDER = re.compile(
    r"aten::(.*_pool|reflection_pad|.*upsample.*_backward|native_(layer|group)_norm|col2im|im2col"
    r"|_(log_)?softmax$)"
)
"""Operators whose kernels need contiguous operands. All others support strides."""
_FACTORS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}
"""Indices of the factors of matrix products."""


def copied_bytes(func: Any, args: Any) -> list[int]:
    """Bytes of each contiguous copy that a kernel makes before its results.

    The copies are alive until the operator returns.
    """
    if func in TRANSFORMS:
        return transform_copies(func, args)
    if func in _FACTORS:
        copied = [args[place] for place in _FACTORS[func] if not _is_matrix(args[place])]
    elif func in _COPIED:
        copied = _COPIED[func](args)
    elif func is aten.index.Tensor:  # indices of the items that masks select
        return [8 * mask.numel() * mask.dim() for mask in masks_in(func, args)]
    elif _is_in_order(func):
        copied = _out_of_order(args)
    else:
        return []
    return [x.numel() * x.element_size() for x in copied if x.is_meta]


@cache
def _is_in_order(func: Any) -> bool:
    return _IN_ORDER.match(func._schema.name) is not None


def _out_of_order(args: Any) -> list[torch.Tensor]:
    """Operands that are not contiguous in the memory format of the input.

    The input is the second operand of an operator for gradients, else the first.
    """
    operands = [x for x in args[:2] if isinstance(x, torch.Tensor) and x.dim() > 1]
    order = suggest_memory_format(operands[-1]) if operands else torch.contiguous_format
    return [x for x in operands if not x.is_contiguous(memory_format=order)]


def _is_matrix(x: torch.Tensor) -> bool:
    """True if cuBLAS supports the strides of a factor."""
    (rows, columns), (by_row, by_column) = x.shape[-2:], x.stride()[-2:]
    return (by_column == 1 and by_row >= max(1, columns)) or (
        by_row == 1 and by_column >= max(1, rows)
    )


def _of_batch_norm_backward(args: Any) -> list[torch.Tensor]:
    """Gradient that cuDNN reads, for images with weights in training."""
    has_cudnn = args[2] is not None and args[7] and args[0].dim() > 2
    return _out_of_order((args[0],)) if has_cudnn else []


def _of_convolution(args: Any) -> list[torch.Tensor]:
    x, weight = args[:2]
    return _not_ordered([x], x, weight)


def _of_convolution_backward(args: Any) -> list[torch.Tensor]:
    grad, x, weight = args[:3]
    return _not_ordered([x, grad] if args[10][1] else [grad], x, weight)


def _not_ordered(
    operands: list[torch.Tensor], x: torch.Tensor, weight: torch.Tensor
) -> list[torch.Tensor]:
    """Operands that are not in the memory format of a convolution."""
    order = torch.contiguous_format
    if _last(x, weight):
        order = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    return [each for each in operands if not each.is_contiguous(memory_format=order)]


def _of_attention_backward(args: Any) -> list[torch.Tensor]:
    return [args[0]] if not args[0].transpose(1, 2).is_contiguous() else []


def passing_bytes(func: Any, args: Any) -> list[tuple[str, int]]:
    """Buffers that a kernel allocates after its results, as (name, bytes); -1 bytes frees one."""
    passing = _PASSING.get(func)
    return [] if passing is None or not args[0].is_meta else passing(args)


def _efficient_backward(args: Any) -> list[tuple[str, int]]:
    """Buffers of the memory-efficient kernel, with the query's gradient padded to tiles of 64."""
    query = args[1]
    batch, heads, queries, width = query.shape
    rows = batch * heads * queries
    aligned = -(-queries // 64) * 64 * -(-width // 64) * 64
    return [
        ("product", rows * width * query.element_size()), ("sums", 4 * rows), ("turned", 4 * rows),
        ("sums", -1), ("product", -1),
        ("sum of the query's gradient", 4 * batch * heads * (aligned + 16)),
    ]  # fmt: skip


def _flash_backward(args: Any) -> list[tuple[str, int]]:
    """Buffer of the query's gradient in single precision, with sums of its rows."""
    query = args[1]
    batch, heads, queries, width = query.shape
    rows = batch * heads * queries
    return [("gradient", 4 * rows * width + 4 * rows + 512)]


def _by_cublas(func: Any, args: Any, result: Any) -> list[Described]:
    """Describe an operator that multiplies matrices with cuBLAS."""
    x = args[0]
    if not x.is_meta:
        return []
    return [("matrix product", func.name(), (tuple(x.shape),), _name(x.dtype), "", False)]


def _times(times: int, place: int = 0) -> Callable[[Any], list[tuple[str, int]]]:
    """Function for a buffer of a multiple of an operand."""
    return lambda args: [("items", times * args[place].numel() * args[place].element_size())]


def _cdist_items(args: Any) -> torch.Tensor:
    """Gradient of a distance for each column, before it is summed over the other operand."""
    x, distances = args[1], args[4]
    items: torch.Tensor = x.new_empty((*distances.shape, x.shape[-1]))
    return items


def _as_integers(args: Any) -> list[torch.Tensor]:
    """Operand of a sum as integers of 8 bytes, to which masks and other integers are converted."""
    x = args[0]
    is_exact = not (x.is_floating_point() or x.is_complex())
    return [x.new_empty(x.shape, dtype=torch.int64)] if is_exact and x.element_size() < 8 else []


def _roll(args: Any) -> list[tuple[str, int]]:
    """Result of rolling the first axis, if several axes are rolled one after the other."""
    return _times(1)(args) if len(args) > 2 and len(args[2]) > 1 else []


def _complex_result(args: Any) -> list[tuple[str, int]]:
    """Complex buffer whose real part is the result of an operator such as abs."""
    x = args[0]
    return [("complex", x.numel() * x.element_size())] if x.is_complex() else []


_DESCRIBED: dict[Any, Callable[..., list[Described]]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _product,
    aten.baddbmm.default: _product,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _sum,
    aten.mean.dim: _sum,
    aten.amax.default: _sum,
    aten.amin.default: _sum,
    aten.binary_cross_entropy.default: _sum_of_loss,
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.huber_loss.default: _loss,
    **dict.fromkeys(
        (
            aten.linalg_matrix_exp.default,
            aten.linalg_inv_ex.default,
            aten._linalg_solve_ex.default,
            aten.linalg_solve_triangular.default,
            aten.linalg_lu_solve.default,
            aten._linalg_det.default,
        ),
        _by_cublas,
    ),
    aten._cdist_backward.default: lambda func, args, result: [
        _summed(func, _cdist_items(args), [-2])
    ],
    aten._cudnn_rnn.default: _dropout_state,
    **dict.fromkeys(TRANSFORMS, transform_calls),
}

_COPIED: dict[Any, Callable[[Any], list[torch.Tensor]]] = {
    aten.sum.default: _as_integers,
    aten.sum.dim_IntList: _as_integers,
    aten._cudnn_rnn.default: recurrent.copied_by_forward,
    aten._cdist_backward.default: lambda args: [_cdist_items(args)],
    aten.native_batch_norm_backward.default: _of_batch_norm_backward,
    aten.convolution.default: _of_convolution,
    aten.convolution_backward.default: _of_convolution_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _of_attention_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _of_attention_backward,
}

_PASSING: dict[Any, Callable[[Any], list[tuple[str, int]]]] = {
    # Probabilities of paths from the end, in addition to those from the beginning.
    aten._ctc_loss_backward.default: _times(1, 6),
    aten._ctc_loss_backward.Tensor: _times(1, 6),
    # Five powers of a matrix and five products of them at a time. A single matrix and its result
    # are also copied. The number depends on the norm: a small norm needs less.
    aten.linalg_matrix_exp.default: lambda args: _times(12 if args[0].dim() == 2 else 10)(args),
    aten.linalg_inv_ex.default: _times(2),
    # Copies, and workspaces of cuSOLVER as measured for 8 matrices of 256 x 128.
    aten._linalg_svd.default: _times(4),
    aten.linalg_qr.default: _times(3),
    aten._linalg_eigh.default: _times(1),
    aten._linalg_solve_ex.default: _times(1, 1),
    aten.multinomial.default: _times(1),
    aten.im2col.default: _times(1),
    aten.roll.default: _roll,
    aten.abs.default: _complex_result,
    aten.angle.default: _complex_result,
    # Product of the gradient and the result, which the kernel reads.
    aten._softmax_backward_data.default: _times(1),
    aten._cudnn_rnn_backward.default: recurrent.taken_by_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
}

IN_PARTS = frozenset({aten.convolution_backward.default})
"""Operators that use a workspace after each result, before they allocate the next."""

_ON_DEVICE = {
    aten.log_sigmoid_forward.default: 1,
    # The other two are the state of the random generator, which is on the host without dropout.
    aten._scaled_dot_product_efficient_attention.default: 2,
}


def results_of(func: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results that take memory on the device, in order of allocation."""
    if func is aten.native_dropout.default:
        return results[::-1]
    return results[: _ON_DEVICE.get(func, len(results))]


def _options(
    stride: Any, padding: Any, dilation: Any, transposed: Any, output_padding: Any, groups: Any
) -> str:
    text = f"stride {_numbers(stride)} padding {_numbers(padding)} dilation {_numbers(dilation)}"
    if transposed:
        text += f" transposed {_numbers(output_padding)}"
    return text if groups == 1 else f"{text} groups {groups}"


def _numbers(values: Any) -> str:
    return "x".join(map(str, values))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _last(x: torch.Tensor, weight: torch.Tensor) -> bool:
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if memory_format is None:
        return False
    return any(
        t.is_contiguous(memory_format=memory_format) and not t.is_contiguous() for t in (x, weight)
    )
