"""Handlers that replace operators which behave differently on tensors without data."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import recurrent
from .host_tensor import HostTensor
from .shape_rules import run_operator


class DispatchMode(TorchDispatchMode):
    """Dispatch mode that does not exclude its handler from torch's compiler.

    torch's base class wraps ``__torch_dispatch__`` in ``torch._disable_dynamo`` unless
    `_should_skip_dynamo` is False. The wrapper imports the compiler: a first replay takes 1.4 s
    with it and 0.5 s without.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch versions before this hook never call it


aten = torch.ops.aten
_current_node = torch._C._current_autograd_node


def _add(func: Any, args: Any, kwargs: Any) -> Any:
    """Add two gradients, in place if autograd's engine would do so.

    The engine adds in place if it holds the only reference to the first gradient, but never for
    tensors without data.
    """
    if _current_node() is not None and not kwargs and len(args) == 2:
        old, new = args
        if (
            isinstance(old, torch.Tensor)
            and isinstance(new, torch.Tensor)
            and old.is_meta
            and old.shape == new.shape
            and old.dtype == new.dtype
            and not torch.is_grad_enabled()
            and not is_shared(old)
            and is_dense(old)
            and _is_called_by_engine()
        ):
            return old
    return run_operator(func, args, kwargs)


def _is_called_by_engine() -> bool:
    """True if autograd's engine called the operator, and not Python code in a backward pass.

    Older versions of torch wrap a mode in a function of the compiler.
    """
    frame = sys._getframe(1)
    while frame.f_globals["__name__"].startswith((__package__, "torch._compile", "torch._dynamo")):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_code.co_name == "_engine_run_backward"


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the items of a tensor are contiguous in some order and none is repeated."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_shared(tensor: torch.Tensor) -> bool:
    """True if an operand or its memory is referenced outside of the running call.

    Valid for the first operand of `aten.add` in a dispatch mode, called by autograd's engine.
    `sole_counts` measures the references of such a call.
    """
    of_tensor, of_storage = sole_counts()
    return _tensor_count(tensor) > of_tensor or _storage_count(tensor) > of_storage


def _tensor_count(tensor: torch.Tensor) -> int:
    count = getattr(tensor, "_use_count", None)  # absent in older versions of torch
    return 0 if count is None else int(count())


def _storage_count(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


@lru_cache(maxsize=1)
def sole_counts() -> tuple[int, int]:
    """Reference counts of a tensor and its storage that only the engine references."""
    counts: list[tuple[int, int]] = []

    class CountReferences(DispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is aten.add.Tensor and _current_node() is not None:
                measure(args)
            return func(*args, **(kwargs or {}))

    def measure(args: Any) -> None:
        old, _ = args
        counts.append((_tensor_count(old), _storage_count(old)))

    def run_backward() -> None:
        leaf = torch.empty(2, device="meta", requires_grad=True)
        x = leaf * 2.0
        (x.sin() + x.cos()).sum().backward()

    with torch.inference_mode(False), torch.enable_grad(), CountReferences():
        run_backward()
    return counts[0]


def _to_copy(func: Any, args: Any, kwargs: Any) -> Any:
    device = kwargs.get("device")
    if args[0].is_meta and device is not None and device.type == "cpu":
        kwargs = {**kwargs, "device": torch.device("meta"), "pin_memory": None}
        return HostTensor(func(*args, **kwargs))
    return func(*args, **kwargs)


def _copy(func: Any, args: Any, kwargs: Any) -> Any:
    into, source = args[:2]
    if source.is_meta and not into.is_meta:  # a copy on the host would have no data
        return into
    return func(*args, **kwargs)


def _view(func: Any, args: Any, kwargs: Any) -> Any:
    """View a result in another shape by `aten.view`, which is eight times faster on meta."""
    return aten.view.default(*args, **kwargs)


def _summed_loss(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute a loss, with the storage of the result as large as on CUDA.

    CUDA's kernels write the loss of each item and then shrink that tensor to the scalar, so the
    storage keeps the size of the input.
    """
    loss, x = run_operator(func, args, kwargs), args[0]
    if not x.is_meta or loss.dim():
        return loss
    storage = torch.empty_like(x).untyped_storage()
    return torch.empty(0, dtype=loss.dtype, device="meta").set_(storage, 0, (), ())


COPIES = frozenset(
    {
        aten.copy_.default,
        aten._to_copy.default,
        aten._pack_padded_sequence.default,
        aten._pack_padded_sequence_backward.default,
    }
)
"""Operators whose operands may be on different devices."""


def _ctc_loss(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the losses of CTC, and the probabilities of paths that it keeps."""
    log_probs, targets, _, target_lengths = args[:4]
    n_steps, batch = log_probs.shape[0], log_probs.shape[1] if log_probs.dim() == 3 else 1
    longest = targets.shape[-1] if targets.dim() == 2 else int(max(target_lengths))
    losses = log_probs.new_empty(batch)
    return losses, log_probs.new_empty(batch, n_steps, 2 * longest + 1)


def _like(place: int) -> Callable[..., Any]:
    """Handler that returns a result like an operand, for operators that lack meta kernels."""
    return lambda func, args, kwargs: torch.empty_like(args[place])


def _yes(func: Any, args: Any, kwargs: Any) -> bool:
    """Return True: the padding mask leaves the first tokens of each sequence."""
    return True


def masks_in(func: Any, args: Any) -> list[torch.Tensor]:
    """Masks without data by which an operator selects an unknown number of items."""
    if func is aten.nonzero.default or func is aten.masked_select.default:
        masks = args[-1:]
    elif func is aten.index.Tensor:
        masks = [t for t in args[1] if t is not None and t.dtype in (torch.bool, torch.uint8)]
    else:
        return []
    return [mask for mask in masks if mask.is_meta]


def _take_all(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operator that selects items by a mask, as if it selected all."""
    masks = masks_in(func, args)
    if not masks:
        return run_operator(func, args, kwargs)
    if func is not aten.index.Tensor:
        sizes = torch.broadcast_shapes(*(each.shape for each in args))
        n_items = math.prod(sizes)
        if func is aten.masked_select.default:
            return args[0].new_empty(n_items)
        return args[0].new_empty((n_items, len(sizes)), dtype=torch.int64)
    indices = []
    for index in args[1]:
        if any(index is mask for mask in masks):
            indices += [index.new_empty(index.numel(), dtype=torch.int64)] * index.dim()
        else:
            indices.append(index)
    return run_operator(func, (args[0], indices), kwargs)


def _lstm_cell_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the gradients of a fused LSTM step: of the gates, the state and a bias."""
    cx, workspace, has_bias = args[2], args[4], args[5]
    bias = workspace.new_empty(workspace.shape[1]) if has_bias else workspace.new_empty(0)
    return torch.empty_like(workspace), torch.empty_like(cx), bias


def _gru_cell(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of a fused GRU step, and five numbers per unit for the backward pass."""
    hx = args[2]
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], 5 * hx.shape[1])


def _gru_cell_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the gradients of a fused GRU step: of both gates, the state and the biases."""
    hx, _, has_bias = args
    gates = [hx.new_empty(hx.shape[0], 3 * hx.shape[1]) for _ in range(2)]
    biases = [hx.new_empty(3 * hx.shape[1] * has_bias) for _ in range(2)]
    return *gates, torch.empty_like(hx), *biases


HANDLERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (aten.nonzero.default, aten.masked_select.default, aten.index.Tensor), _take_all
    ),
    aten._cudnn_rnn.default: recurrent.forward,
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._ctc_loss_backward.default: _like(1),
    aten._ctc_loss_backward.Tensor: _like(1),
    aten._dirichlet_grad.default: _like(-1),
    aten._nested_tensor_from_mask_left_aligned.default: _yes,
    # The number of tokens that a mask leaves is unknown.
    aten._nested_tensor_from_mask.default: _like(0),
    aten.to_padded_tensor.default: _like(0),
    aten.nested_to_padded_tensor.default: _like(0),
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten.multi_margin_loss_backward.default: _like(1),
    aten._standard_gamma_grad.default: _like(-1),
    aten._cudnn_rnn_backward.default: recurrent.backward,
    aten._unsafe_view.default: _view,
    aten.add.Tensor: _add,
    aten.binary_cross_entropy.default: _summed_loss,
    aten.mse_loss.default: _summed_loss,
    aten.smooth_l1_loss.default: _summed_loss,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy,
}
"""Handlers by operator, called as ``handler(operator, args, kwargs)``."""
