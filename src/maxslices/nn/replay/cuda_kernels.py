"""Composite operators as CUDA runs them, for tensors on the meta device.

While `as_on_cuda` is active, operators made of other operators are decomposed as on a GPU: dropout
keeps a mask of one byte an item, attention is one kernel if the device has one, a linear layer adds
its bias in place, a recurrent layer is one call of cuDNN. Only the implementations of the meta
device are overridden.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

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
    made: torch.Tensor = aten.native_dropout(x, p, True)[0]
    return made


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Linear layer as on CUDA: product and bias in one kernel, or the bias added in place."""
    if bias is None:
        return torch.matmul(x, weight.t())
    if x.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    if x.dim() >= 3 and x.is_contiguous():
        flat = x.reshape(-1, x.shape[-1])
        made = torch.addmm(bias, flat, weight.t())
        return made.view(*x.shape[:-1], weight.shape[0])
    return torch.matmul(x, weight.t()).add_(bias)


def attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    capability: Capability,
    enable_gqa: bool = False,
) -> str:
    """Kernel that scaled_dot_product_attention uses on CUDA.

    Returns
    -------
    str
        "flash", "efficient" or "math", by torch's own order and conditions: flash attention needs
        half precision, no mask and heads of at most 256; the memory-efficient kernel supports
        single precision and masks too, if a mask's last axis is contiguous; both need rank 4. Heads
        of keys that several heads of queries share are supported by flash attention alone. A kernel
        that the user disabled with ``torch.nn.attention.sdpa_kernel`` is not used.
    """
    cuda = torch.backends.cuda
    heads = query.shape[-1], value.shape[-1]
    plain = query.dim() == key.dim() == 4 and min(query.shape[-2], key.shape[-2]) > 0
    same = query.dtype == key.dtype == value.dtype
    unit = query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    if not (plain and same and unit):
        return "math"
    alike = query.shape[:2] == key.shape[:2] == value.shape[:2]
    half = query.dtype in (torch.float16, torch.bfloat16)
    if (
        cuda.flash_sdp_enabled()
        and capability.major >= 8
        and half
        and mask is None
        and (alike or enable_gqa)
        and heads[0] == heads[1] <= 256
        and not (is_causal and query.shape[-2] > key.shape[-2])
    ):
        return "flash"
    item = query.element_size()
    aligned = all(head * item % 16 == 0 for head in heads)
    if (
        cuda.mem_efficient_sdp_enabled()
        and capability.major >= 5
        and (half or query.dtype == torch.float32)
        and (query.dtype != torch.bfloat16 or capability.major >= 8)
        and (mask is None or (aligned and mask.stride(-1) == 1))
        and alike
        and heads[0] == heads[1]
    ):
        return "efficient"
    return "math"


def attention(capability: Capability) -> Any:
    """Make scaled_dot_product_attention as a device of that capability runs it."""

    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        made: torch.Tensor
        kernel = attention_kernel(
            query, key, value, attn_mask, dropout_p, is_causal, capability, enable_gqa
        )
        if kernel == "flash":
            # torch pads heads to multiples of 8 for this kernel.
            width = query.shape[-1]
            pad = -width % 8
            if pad:
                query, key, value = (
                    torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value)
                )
                scale = width**-0.5 if scale is None else scale
            made = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
            return made[..., :width] if pad else made
        if kernel == "efficient":
            graph = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
            if attn_mask is not None:
                attn_mask = _bias(attn_mask, query, key)
            made = aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, graph, dropout_p, is_causal, scale=scale
            )[0]
            return made
        made = aten._scaled_dot_product_attention_math(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            None,
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
        return made

    return scaled_dot_product_attention


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Convert a mask as the memory-efficient kernel needs it: numbers, rows padded to 16 bytes."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, 0.0)
    width = mask.shape[-1]
    step = 16 // mask.element_size()
    if width % step:
        mask = torch.nn.functional.pad(mask, (0, step - width % step))[..., :width]
    return mask.expand(*query.shape[:-1], key.shape[-2])


def _fast_attention(real: Any) -> Any:
    """Make a `MultiheadAttention.forward` that runs without gradients as CUDA does.

    On devices that torch lists, one operator does it all: it neither copies the projected operands
    nor transposes batch and sequence.
    """

    def forward(
        self: torch.nn.MultiheadAttention,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        weight, bias = self.in_proj_weight, self.in_proj_bias
        kept = torch.is_grad_enabled() and (weight is None or weight.requires_grad)
        plain = attn_mask is None and key_padding_mask is None and not need_weights
        if (
            not torch.backends.mha.get_fastpath_enabled()
            or not (query is key is value and query.dim() == 3 and query.is_meta)
            or self.training
            or kept
            or (torch.is_grad_enabled() and query.requires_grad)
            or not (plain and self.batch_first and self._qkv_same_embed_dim)
            or bias is None
            or self.bias_k is not None
            or self.add_zero_attn
            or self.num_heads % 2
            or query.dtype != weight.dtype
            or torch.is_autocast_enabled("cuda")
        ):
            return real(
                self, query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        return _fused_attention(self, query, None), None

    return forward


def _fused_attention(
    layer: torch.nn.MultiheadAttention, x: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attention of a layer on itself as one operator, ``_native_multi_head_attention``."""
    batch, length = x.shape[:2]
    weight, bias = layer.in_proj_weight, layer.in_proj_bias
    heads, width = layer.num_heads, layer.head_dim
    if mask is None and width % 8 == 0:
        q, k, v = (
            part.view(batch, -1, heads, width).transpose(1, 2)
            for part in torch.nn.functional.linear(x, weight, bias).chunk(3, -1)
        )
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        # q, k and v stay alive to the end, as in torch's operator.
        made = made.transpose(1, 2).reshape(batch, -1, layer.embed_dim)
        result: torch.Tensor = layer.out_proj(made)
        del made
        return result
    projected = torch.mm(x.reshape(-1, x.shape[-1]), weight.t())
    q, k, v = torch.empty_like(projected).view(3, batch * heads, length, width)
    del projected
    scores = torch.bmm(q, k.transpose(1, 2))
    scores = torch.empty_like(scores)  # of the softmax, next to its operand
    del scores
    flat = q.view(-1, layer.embed_dim)  # torch writes the result of the heads there
    out = layer.out_proj
    return torch.addmm(out.bias, flat, out.weight.t()).view(batch, length, -1)


def _fast_encoder_layer(real: Any) -> Any:
    """Make a `TransformerEncoderLayer.forward` that runs without gradients as CUDA does.

    One operator, ``_transformer_encoder_layer_fwd``, adds in place and applies the activation in
    the product before it.
    """

    def forward(
        self: torch.nn.TransformerEncoderLayer,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        attention_of = self.self_attn
        has_graph = torch.is_grad_enabled() and (
            src.requires_grad or any(p.requires_grad for p in self.parameters())
        )
        if (
            not torch.backends.mha.get_fastpath_enabled()
            or not (src.is_meta and src.dim() == 3)
            or self.training
            or has_graph
            or not (attention_of.batch_first and attention_of._qkv_same_embed_dim)
            or attention_of.in_proj_bias is None
            or attention_of.num_heads % 2
            or not self.activation_relu_or_gelu
            or self.norm1.eps != self.norm2.eps
            or self.linear1.bias is None
            or src.dtype != self.linear1.weight.dtype
            or torch.is_autocast_enabled("cuda")
        ):
            return real(self, src, src_mask, src_key_padding_mask, is_causal)
        mask = src_key_padding_mask if src_mask is None else src_mask
        x = self.norm1(src) if self.norm_first else src
        x = _fused_attention(attention_of, x, mask).add_(src)
        if not self.norm_first:
            x = self.norm1(x)
        kept = x
        if self.norm_first:
            x = self.norm2(x)
        flat = x.reshape(-1, x.shape[-1])
        hidden = torch.addmm(self.linear1.bias, flat, self.linear1.weight.t())
        x = torch.addmm(self.linear2.bias, hidden, self.linear2.weight.t()).view(src.shape)
        del hidden, flat
        x = x.add_(kept)
        return x if self.norm_first else self.norm2(x)

    return forward


@contextmanager
def as_on_cuda(capability: Capability) -> Iterator[dict[Any, Any]]:
    """Override composite operators for tensors on the meta device.

    Yields
    ------
    dict
        The overriding functions by operator, for code under ``torch.inference_mode``, which
        bypasses the dispatch key that is overridden.
    """
    made = {
        aten.dropout.default: native_dropout,
        aten.linear.default: linear,
        aten.scaled_dot_product_attention.default: attention(capability),
        **recurrent.overrides(),
    }
    library = torch.library.Library("aten", "IMPL")
    attention_of = torch.nn.MultiheadAttention
    encoder_of = torch.nn.TransformerEncoderLayer
    fast = mock.patch.multiple(attention_of, forward=_fast_attention(attention_of.forward))
    layer = mock.patch.multiple(encoder_of, forward=_fast_encoder_layer(encoder_of.forward))
    fast.start()
    layer.start()
    try:
        for operator, function in made.items():
            library.impl(operator.name().removeprefix("aten::"), function, "AutogradMeta")
        yield made
    finally:
        layer.stop()
        fast.stop()
        library._destroy()
