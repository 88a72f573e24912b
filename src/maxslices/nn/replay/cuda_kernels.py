"""Composite operators as CUDA runs them, for tensors on the meta device.

While `as_on_cuda` is active, composite operators are decomposed as on a GPU. Dropout keeps a mask
of one byte per item, attention is one kernel if the device has one, a linear layer adds its bias in
place, and a recurrent layer is one call of cuDNN. Only the implementations of the meta device are
overridden.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey

from . import recurrent

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Capability:
    """Compute capability of the replayed device."""

    major: int = 9
    """9 for H100 and H200, 8 for A100, 7 for V100."""
    minor: int = 0


def native_dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout with a mask of booleans, as on CUDA."""
    if not train or p == 0.0 or x.numel() == 0:
        return x
    if p == 1.0:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    dropped: torch.Tensor = aten.native_dropout(x, p, True)[0]
    return dropped


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Linear layer as on CUDA, with product and bias in one kernel, or the bias added in place."""
    if bias is None:
        return torch.matmul(x, weight.t())
    if x.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    if x.dim() >= 3 and x.is_contiguous():
        flat = x.reshape(-1, x.shape[-1])
        product = torch.addmm(bias, flat, weight.t())
        return product.view(*x.shape[:-1], weight.shape[0])
    return torch.matmul(x, weight.t()).add_(bias)


def attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
    capability: Capability,
) -> str:
    """Kernel that scaled_dot_product_attention uses on CUDA.

    Returns
    -------
    str
        "flash", "efficient" or "math", in torch's order and by its conditions. All but "math" need
        rank 4. Flash attention needs half precision, no mask and heads of at most 256 features. It
        alone supports heads of keys that several heads of queries share. The memory-efficient
        kernel supports single precision, and masks whose last axis is contiguous. A kernel that the
        user disabled with ``torch.nn.attention.sdpa_kernel`` is not used.
    """
    cuda = torch.backends.cuda
    widths = query.shape[-1], value.shape[-1]
    has_rank_4 = query.dim() == key.dim() == 4 and min(query.shape[-2], key.shape[-2]) > 0
    has_one_dtype = query.dtype == key.dtype == value.dtype
    is_contiguous = query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    if not (has_rank_4 and has_one_dtype and is_contiguous):
        return "math"
    has_same_heads = query.shape[:2] == key.shape[:2] == value.shape[:2]
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if (
        cuda.flash_sdp_enabled()
        and capability.major >= 8
        and is_half
        and mask is None
        and (has_same_heads or enable_gqa)
        and widths[0] == widths[1] <= 256
        and not (is_causal and query.shape[-2] > key.shape[-2])
    ):
        return "flash"
    item = query.element_size()
    is_aligned = all(width * item % 16 == 0 for width in widths)
    if (
        cuda.mem_efficient_sdp_enabled()
        and capability.major >= 5
        and (is_half or query.dtype == torch.float32)
        and (query.dtype != torch.bfloat16 or capability.major >= 8)
        and (mask is None or (is_aligned and mask.stride(-1) == 1))
        and has_same_heads
        and widths[0] == widths[1]
    ):
        return "efficient"
    return "math"


def attention(
    capability: Capability, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Scaled dot product attention by the kernel that a device of that capability uses."""
    kernel = attention_kernel(query, key, value, attn_mask, is_causal, enable_gqa, capability)
    if kernel == "flash":
        # torch pads heads to multiples of 8 features for this kernel.
        width = query.shape[-1]
        pad = -width % 8
        if pad:
            query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
            scale = width**-0.5 if scale is None else scale
        result = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return result[..., :width] if pad else result
    if kernel == "efficient":
        graph = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if attn_mask is not None:
            attn_mask = _bias(attn_mask, query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, graph, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
        enable_gqa=enable_gqa,
    )[0]  # fmt: skip


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Convert a mask to numbers with rows padded to 16 bytes, for the memory-efficient kernel."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, 0.0)
    width = mask.shape[-1]
    step = 16 // mask.element_size()
    if width % step:
        mask = torch.nn.functional.pad(mask, (0, step - width % step))[..., :width]
    return mask.expand(*query.shape[:-1], key.shape[-2])


def native_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int, num_head: int,
    qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, proj_weight: torch.Tensor,
    proj_bias: torch.Tensor, mask: torch.Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    """Self-attention of a layer without gradients, as one operator."""
    batch, length, _ = query.shape
    width = embed_dim // num_head
    if mask is None and not need_weights and width % 8 == 0:
        q, k, v = (
            part.view(batch, -1, num_head, width).transpose(1, 2)
            for part in linear(query, qkv_weight, qkv_bias).chunk(3, -1)
        )
        heads = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        # q, k and v stay alive to the end, as in torch's operator.
        heads = heads.transpose(1, 2).reshape(batch, -1, embed_dim)
        result = linear(heads, proj_weight, proj_bias)
        del heads
        return result, query.new_empty(0)
    projected = torch.mm(query.reshape(-1, embed_dim), qkv_weight.t())
    q, k, v = torch.empty_like(projected).view(3, batch * num_head, length, width)
    del projected
    scores = torch.bmm(q, k.transpose(1, 2))
    if mask is not None:
        mask = mask if mask_type == 1 else torch.empty_like(scores, dtype=torch.bool)
        scores = torch.empty_like(scores)  # result of the softmax
        del mask
    heads = torch.bmm(scores, v)
    if not need_weights:
        del scores
    result = torch.addmm(proj_bias, heads.view(-1, embed_dim), proj_weight.t())
    del heads
    result = result.view(batch, length, -1)
    if not need_weights:
        return result, query.new_empty(0)
    scores = scores.view(batch, num_head, length, length)
    return result, scores.mean(1) if average_attn_weights else scores


def encoder_layer(
    src: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: bool,
    norm_first: bool, eps: float, norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor, ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Layer of a Transformer encoder without gradients, which adds in place."""

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = torch.native_layer_norm(x, (embed_dim,), weight, bias, eps)[0]
        return normed

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    x = native_attention(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False,
        False, mask_type,
    )[0].add_(src)  # fmt: skip
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    kept = x
    if norm_first:
        x = norm(x, norm_weight_2, norm_bias_2)
    hidden = linear(x, ffn_weight_1, ffn_bias_1)
    x = linear(hidden, ffn_weight_2, ffn_bias_2)
    del hidden
    x = x.add_(kept)
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)


def rms_norm(
    x: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Norm by the root mean square, in one kernel that keeps the same tensors as a layer norm."""
    normed: torch.Tensor = torch.native_layer_norm(x, shape, weight, None, eps or 0.0)[0]
    return normed


def lstm_cell(
    x: torch.Tensor, hx: Any, w_ih: torch.Tensor, w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None, b_hh: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """One step of an LSTM, with a fused kernel for all gates."""
    gates = torch.mm(x, w_ih.t()), torch.mm(hx[0], w_hh.t())
    return aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)[:2]


def gru_cell(
    x: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None, b_hh: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """One step of a GRU, with a fused kernel for all gates."""
    gates = torch.mm(x, w_ih.t()), torch.mm(hx, w_hh.t())
    state: torch.Tensor = aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]
    return state


FUSED = {
    aten._native_multi_head_attention.default: native_attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
"""Functions that replace operators which torch calls without gradients."""
COMPOSED = (
    aten._euclidean_dist.default,
    aten._safe_softmax.default,
    aten._trilinear.default,
    aten.affine_grid_generator.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.logsumexp.default,
    aten.logsumexp.out,
    aten.soft_margin_loss.default,
    aten.soft_margin_loss.out,
    aten.soft_margin_loss_backward.default,
    aten.soft_margin_loss_backward.grad_input,
)
"""Operators whose kernel is the same for all devices and calls operators that allocate."""
_EXPLICIT = (
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CompositeExplicitAutogradNonFunctional,
)


def _kernel(operator: Any) -> Any:
    """Kernel of an operator for all devices."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    key = next(each for each in _EXPLICIT if has_kernel(operator.name(), each.name))
    return partial(operator._op_dk, key)


@contextmanager
def as_on_cuda(capability: Capability) -> Iterator[dict[Any, Any]]:
    """Override composite operators for tensors on the meta device.

    Yields
    ------
    dict
        Overriding functions by operator, for code under ``torch.inference_mode``, which bypasses
        the overridden dispatch key.
    """
    overrides = {
        aten.dropout.default: native_dropout,
        aten.linear.default: linear,
        aten.scaled_dot_product_attention.default: partial(attention, capability),
        aten.lstm_cell.default: lstm_cell,
        aten.gru_cell.default: gru_cell,
        aten.rms_norm.default: rms_norm,
        aten.mish_backward.default: aten.silu_backward,  # one kernel, as for silu
        **recurrent.overrides(),
    }
    library = torch.library.Library("aten", "IMPL")
    # Layers check whether a tensor's device has fused operators.
    patch = mock.patch.object(torch.utils.backend_registration, "_privateuse1_backend_name", "meta")
    patch.start()
    try:
        for operator, function in overrides.items():
            library.impl(operator.name().removeprefix("aten::"), function, "AutogradMeta")
        yield {**overrides, **FUSED, **{operator: _kernel(operator) for operator in COMPOSED}}
    finally:
        patch.stop()
        library._destroy()
