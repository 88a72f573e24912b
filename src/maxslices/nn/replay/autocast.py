"""``torch.autocast("cuda")`` for tensors without data.

torch's autocast acts on tensors of a CUDA device only. While `cuda_autocast` is active, autocast
contexts cast tensors without data by the same lists of operators (torch's documentation, "CUDA
Op-Specific Behavior"). Casts of weights are kept until the outermost context ends, as in torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOW = _names(
    """
    __matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul multi_dot conv1d
    conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc convolution
    einsum gru gru_cell linear linalg_multi_dot linalg_vecdot lstm lstm_cell matmul mm mv
    prelu rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention
    """
)
"""Functions whose operands are cast to the lower precision."""

_SINGLE = _names(
    """
    __pow__ __rpow__ __rdiv__ __rtruediv__ acos asin binary_cross_entropy_with_logits cdist
    cosh cosine_embedding_loss cosine_similarity cross_entropy_loss dist erfinv exp expm1
    frobenius_norm group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log
    log10 log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss nll_loss nll_loss2d nll_loss_nd norm nuclear_norm pdist
    poisson_nll_loss pow reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss
    soft_margin_loss softplus tan triplet_margin_loss
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    """
)
"""Functions whose operands are cast to single precision."""

_SINGLE_RESULT = _names(
    "cumprod cumsum linalg_matrix_norm linalg_vector_norm log_softmax prod softmax sum"
)
"""Functions that read half precision and return single precision."""

_WIDEST = _names(
    """
    addcdiv addcmul atan2 bilinear cross dot grid_sampler grid_sampler_2d grid_sampler_3d
    index_put scatter_add tensordot vdot
    """
)
"""Functions whose operands are cast to the widest dtype among them."""

_HALF = (torch.float16, torch.bfloat16)


class AutocastMode(TorchFunctionMode):
    """Casts operands of functions as the innermost autocast context does."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[torch.dtype | None] = []
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        low = self.states[-1] if self.states else None
        if low is None:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _LOW:
            args, kwargs = tree_map(lambda item: self._cast(item, low), (args, kwargs))
        elif name in _SINGLE:
            args, kwargs = tree_map(_single, (args, kwargs))
        elif name in _SINGLE_RESULT:
            return _with_single_result(name, func, args, kwargs)
        elif name in _WIDEST:
            args, kwargs = _widened(args, kwargs)
        return func(*args, **kwargs)

    def _cast(self, item: Any, low: torch.dtype) -> Any:
        if not _eligible(item) or item.dtype == low:
            return item
        if not (item.requires_grad and item.is_leaf and item.dtype == torch.float32):
            return item.to(low)
        entry = self._kept.get(id(item))
        if entry is None or entry[1].dtype != low:
            entry = self._kept[id(item)] = item, item.to(low)
        return entry[1]

    def enter(self, low: torch.dtype | None) -> None:
        """Enter a context with a lower precision, or None if it disables autocast."""
        if not self.states:
            self.__enter__()  # type: ignore[no-untyped-call]
        self.states.append(low)

    def leave(self) -> None:
        """Leave the innermost context. The outermost drops the casts of weights."""
        self.states.pop()
        if not self.states:
            self._kept.clear()
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _eligible(item: Any) -> bool:
    return (
        isinstance(item, torch.Tensor)
        and item.is_meta
        and item.is_floating_point()
        and item.dtype != torch.float64
    )


def _single(item: Any) -> Any:
    return item.float() if _eligible(item) and item.dtype in _HALF else item


def _with_single_result(name: str, func: Any, args: Any, kwargs: Any) -> Any:
    x: Any = args[0] if args else None
    if not (_eligible(x) and x.dtype in _HALF) or kwargs.get("dtype") is not None:
        return func(*args, **kwargs)
    if name in ("softmax", "log_softmax") and x.dtype == torch.float16:
        # CUDA has a kernel that reads half precision and writes single.
        dim = args[1] if len(args) > 1 else kwargs["dim"]
        op = torch._softmax if name == "softmax" else torch._log_softmax
        return op(x, dim, True)
    return func(*args, **{**kwargs, "dtype": torch.float32})


def _widened(args: Any, kwargs: Any) -> tuple[Any, Any]:
    leaves: list[torch.dtype] = []
    tree_map(lambda item: leaves.append(item.dtype) if _eligible(item) else None, (args, kwargs))
    if len(set(leaves)) < 2:
        return args, kwargs
    widest = torch.float32 if torch.float32 in leaves else leaves[0]
    widened: tuple[Any, Any] = tree_map(
        lambda item: item.to(widest) if _eligible(item) else item, (args, kwargs)
    )
    return widened


@contextmanager
def cuda_autocast() -> Iterator[AutocastMode]:
    """Let ``torch.autocast("cuda")`` cast tensors without data, with or without a device.

    ``torch.autocast(x.device.type)`` does the same, where the type is "meta". Functions of
    ``torch.nn.functional`` run their Python code while it casts: a function mode would otherwise
    see each as one function, and not the functions that it calls.
    """
    kind = torch.amp.autocast_mode.autocast
    begin: Any = kind.__init__
    enter: Any = kind.__enter__
    leave: Any = kind.__exit__
    casts = AutocastMode()

    def own_begin(self: Any, device_type: str, *more: Any, **named: Any) -> None:
        begin(self, "cuda" if device_type == "meta" else device_type, *more, **named)

    def own_enter(self: Any) -> Any:
        if self.device != "cuda":
            return enter(self)
        was = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        vars(self).setdefault("_maxslices_before", []).append(was)
        torch.set_autocast_enabled("cuda", self._enabled)
        torch.set_autocast_dtype("cuda", self.fast_dtype)
        casts.enter(self.fast_dtype if self._enabled else None)
        return self

    def own_leave(self: Any, *error: Any) -> Any:
        if self.device != "cuda":
            return leave(self, *error)
        casts.leave()
        enabled, dtype = self._maxslices_before.pop()
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)
        return False

    def kind_of(*args: Any) -> str:
        return "cuda"

    def never(*args: Any, **kwargs: Any) -> bool:
        return False

    with ExitStack() as stack:

        def patch(owner: Any, name: str, value: Callable[..., Any]) -> None:
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, value))

        patch(kind, "__init__", own_begin)
        patch(kind, "__enter__", own_enter)
        patch(kind, "__exit__", own_leave)
        patch(torch.cuda.amp.common, "amp_definitely_not_available", never)
        patch(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
        # A checkpoint restores the autocast state of this kind of device when it recomputes.
        if "torch.utils.checkpoint" in sys.modules:
            patch(sys.modules["torch.utils.checkpoint"], "_infer_device_type", kind_of)
        for owner in (torch.nn.functional, torch.functional, torch._tensor, torch.overrides):
            for suffix in ("", "_unary", "_variadic"):
                name = f"has_torch_function{suffix}"
                real = getattr(owner, name, None)
                if real is not None:
                    patch(owner, name, _unless(casts, real))
        yield casts


def _unless(casts: AutocastMode, real: Callable[..., Any]) -> Callable[..., Any]:
    """Make a check for overrides that ignores this mode."""

    def check(*args: Any) -> Any:
        return False if casts.states else real(*args)

    return check
