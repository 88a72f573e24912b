"""Recurrent layers as cuDNN runs them: all layers and time steps in one operator.

torch uses cuDNN for ``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` on CUDA, and a loop over time steps
elsewhere. Allocations follow ``ATen/native/cudnn/RNN.cpp``: contiguous copies of operands with the
batch first, the results, a workspace, and a buffer for the backward pass ("reserve").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten


class Cell(NamedTuple):
    """One of cuDNN's recurrent cells. Counts are per unit of a layer."""

    mode: int
    """cuDNN's number of the mode."""
    gates: int
    """Matrix products per time step, each of the hidden size."""
    kept: int
    """Numbers per time step that a layer keeps for the backward pass."""
    small: tuple[int, int]
    """Largest hidden sizes, forward and backward, for which torch chooses kernels for few units
    (``use_rnn_persist_small_h`` in its source)."""
    states: int = 1
    """Number of states passed from step to step."""
    of_layer: tuple[int, int] = (1, 1)
    """Numbers per layer, forward and backward, independent of the number of time steps."""
    of_small: int = 9
    """Additional numbers per time step in the backward kernels for few units."""


CELLS = {
    "rnn_relu": Cell(0, 1, 1, (384, 256)),
    "rnn_tanh": Cell(1, 1, 1, (384, 256)),
    "lstm": Cell(2, 4, 5, (192, 128), 2, (6, 3), 12),
    "gru": Cell(3, 3, 6, (192, 128), 1, (3, 1), 14),
}
"""Cells by torch's name. An LSTM keeps its four gates and the cell state, a GRU six numbers."""
STREAM_BYTES = 8 * 2**20
"""Workspace of cuBLAS per layer and direction."""
MOST_STEPS = 256
"""Most time steps whose gates are computed at once, for one direction."""
ALIGNED_BYTES = 9 * 1024
"""Allowance for the alignment of the parts of a workspace: up to 8.4 kB were measured."""
_BY_MODE = {cell.mode: cell for cell in CELLS.values()}


class Sizes(NamedTuple):
    """Sizes of a call of a recurrent layer, and its memory in cuDNN.

    The formulas were fitted to 16,000 answers of ``cudnnGetRNNTempSpaceSizes`` (cuDNN 9.19, an
    H100), which runs no kernel. They are exact to 0.1 %, except for simpler bounds that are up to
    30 % too high for many sequences of few steps.
    """

    cell: Cell
    items: int
    """Time steps of all sequences."""
    batch: int
    hidden: int
    width: int
    """Features of the input."""
    layers: int
    directions: int
    dtype: torch.dtype
    weights: int
    """Numbers in the matrices of all weights."""
    is_packed: bool = False
    """Whether sequences differ in length. cuDNN then makes no padded copies."""
    has_dropout: bool = False
    projected: int = 0
    """Units of the projection, or 0 without one."""

    @property
    def item_bytes(self) -> int:
        """Bytes per number."""
        return self.dtype.itemsize

    @property
    def _both(self) -> int:
        """1 for both directions, which need more copies of a sequence, else 0."""
        return self.directions - 1

    def reserve_bytes(self) -> int:
        """Bytes kept for the backward pass: states of the layers, and sequences between them.

        With dropout, one bit per number is added.
        """
        units = self.items * self.hidden * self.directions
        between = self.layers - 1
        n_bytes = self.item_bytes * units * (self.cell.kept * self.layers + between)
        if self.projected:  # states before and after the projection (H100, 2026-11-28)
            one = self.items * self.directions * (self.hidden + self.projected)
            n_bytes += self.item_bytes * one * self.layers
        masks = units * self.directions * between // 8 if self.has_dropout else 0
        return n_bytes + masks

    def forward_bytes(self, train: bool) -> int:
        """Workspace of the forward pass."""
        is_small = self.has_small_kernel(0)
        forward = self._forward(is_small, train)
        return max(forward, self._backward(is_small)) if train else forward

    def backward_bytes(self) -> int:
        """Workspace of each half of the backward pass (gradients of input, then of weights)."""
        is_small = self.has_small_kernel(1)
        return max(self._forward(is_small, True), self._backward(is_small))

    def has_small_kernel(self, which: int) -> bool:
        """True if torch chooses the kernels for few units, forward (0) or backward (1)."""
        has_kernel = self.dtype in (torch.float32, torch.float16) and not self.is_packed
        return has_kernel and self.hidden <= self.cell.small[which]

    def _forward(self, is_small: bool, train: bool) -> int:
        """Bytes of the gates, and of input and output with padding."""
        cell, many = self.cell, self.directions
        of_layer = many * cell.of_layer[0] + 4 * self._both + is_small
        gates = many * cell.gates + 4 * self._both
        items = self.items
        if not is_small and not self._both:
            items = min(items, MOST_STEPS * self.batch)
        numbers = gates * items * self.hidden
        if is_small:
            numbers += 4 * cell.gates * self.items * self.hidden
        if train and self.has_dropout and not self._both:
            numbers += self.items * self.hidden
        if not self.is_packed:
            of_layer += 2 * cell.states * many
            numbers += self.items * (self.width + many * self.hidden)
        return self._bytes(of_layer, numbers)

    def _backward(self, is_small: bool) -> int:
        """Bytes of gradients of input and output, with padding, and of the layers between."""
        cell, many = self.cell, self.directions
        of_layer = many * cell.of_layer[1] + 4 * self._both + is_small
        widest = max(self.width, self.hidden)
        if self._both:
            numbers = self.items * (4 * widest + (2 if self.layers == 1 else 4) * self.hidden)
        else:
            numbers = self.items * widest + self._between(is_small) * self.hidden
        if is_small:
            numbers += cell.of_small * self.items * self.hidden
        if not self.is_packed:
            of_layer += 4 * cell.states * many
            numbers += 2 * self.items * (self.width + many * self.hidden)
        return self._bytes(of_layer, numbers)

    def _between(self, is_small: bool) -> int:
        """Items between the layers of one direction.

        Layers run at the same time, each some time steps behind the layer above: 8, or more for a
        small batch.
        """
        if self.layers == 1 or is_small:
            return self.items * min(2, self.layers)
        steps = 8 if self.batch >= 16 else 16 if self.batch > 1 else 32
        return min(self.items, (self.layers + 1) * steps * self.batch)

    def _bytes(self, of_layer: int, numbers: int) -> int:
        """Bytes of a workspace from its parts: cuBLAS, weights, layers and time steps."""
        numbers += self.weights + self.layers * of_layer * self.batch * self.hidden
        numbers += self.items * self.directions * self.projected
        streams = self.layers * self.directions * STREAM_BYTES
        return streams + self.item_bytes * numbers + ALIGNED_BYTES


def overrides() -> dict[Any, Callable[..., Any]]:
    """Functions by operator that call cuDNN's operator instead of a loop over time steps."""
    functions: dict[Any, Callable[..., Any]] = {}
    for name, cell in CELLS.items():
        packet = getattr(aten, name)
        functions[packet.input] = partial(_run_padded, cell)
        functions[packet.data] = partial(_run_packed, cell)
    return functions


def _run_packed(
    cell: Cell, x: torch.Tensor, batch_sizes: torch.Tensor, hx: Any,
    params: Sequence[torch.Tensor], *options: Any,
) -> Any:  # fmt: skip
    return _run_padded(cell, x, hx, params, *(*options, False, batch_sizes.tolist()))


def _run_padded(
    cell: Cell, x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], has_biases: bool,
    layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    batch_sizes: Sequence[int] = (),
) -> Any:  # fmt: skip
    is_lstm = cell is CELLS["lstm"]
    states: Sequence[torch.Tensor] = hx if is_lstm else (hx,)
    h, c = states[0], states[1] if is_lstm else None
    directions = 1 + bidirectional
    hidden = states[-1].shape[-1]
    projected = h.shape[-1] if h.shape[-1] != hidden else 0
    per_layer = len(params) // (layers * directions)
    results = aten._cudnn_rnn(
        x, list(params), per_layer, None, h, c, cell.mode, hidden, projected, layers, batch_first,
        dropout, train, bidirectional, list(batch_sizes), None,
    )  # fmt: skip
    return results[:3] if is_lstm else results[:2]


def forward(func: Any, args: Any, kwargs: Any) -> Any:
    """Results of cuDNN's operator: output, last states, the reserve, and no copy of weights."""
    x, hx, cx = args[0], args[4], args[5]
    hidden, projected, _, batch_first, _, train = args[7:13]
    sizes = sizes_of(args)
    width = (projected or hidden) * sizes.directions
    if len(args[14]):
        output = x.new_empty((x.shape[0], width))
    else:
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
        output = x.new_empty((steps, batch, width))
        output = output.transpose(0, 1) if batch_first else output
    empty = x.new_empty(0)
    reserve = sizes.reserve_bytes() if train else 0
    return (
        output, torch.empty_like(hx), empty if cx is None else torch.empty_like(cx),
        x.new_empty(reserve, dtype=torch.uint8), empty.new_empty(0),
    )  # fmt: skip


def backward(func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of input, states and weights, with those of the weights in one buffer."""
    x, weights, _, _, hx, cx = args[:6]
    train, mask = args[16], args[21]
    if not train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    of_input = torch.empty_strided(x.shape, _turned(x, args[14]), dtype=x.dtype, device=x.device)
    of_weights: list[Any] = [None] * len(weights)
    if mask[3]:
        flat = weights[0].new_empty(sum(w.numel() for w in weights))
        parts = flat.split([w.numel() for w in weights])
        of_weights = [part.view(w.shape) for part, w in zip(parts, weights, strict=True)]
    return (
        of_input, torch.empty_like(hx), None if cx is None else torch.empty_like(cx), of_weights,
    )  # fmt: skip


def _turned(x: torch.Tensor, batch_first: bool) -> tuple[int, ...]:
    """Strides of a tensor that is contiguous with time first."""
    if not batch_first or x.dim() < 3:
        return tuple(torch.empty(x.shape, device="meta").stride())
    batch, _, width = x.shape
    return width, batch * width, 1


def sizes_of(args: Any) -> Sizes:
    """Sizes of a call of ``_cudnn_rnn`` or of its gradient, from its arguments."""
    x, weights = args[0], args[1]
    # The gradient's arguments have the output and its three gradients before the mode.
    at = 6 if isinstance(args[6], int) else 10
    mode, hidden, projected, layers, batch_first = args[at : at + 5]
    dropout, _, bidirectional, batch_sizes = args[at + 5 : at + 9]
    items = x.shape[0] if len(batch_sizes) else x.shape[0] * x.shape[1]
    batch = batch_sizes[0] if len(batch_sizes) else x.shape[0 if batch_first else 1]
    return Sizes(
        _BY_MODE[mode], items, batch, hidden, x.shape[-1], layers, 1 + bidirectional, x.dtype,
        sum(w.numel() for w in weights if w.dim() > 1), bool(len(batch_sizes)), dropout > 0,
        projected,
    )  # fmt: skip


def copied_by_forward(args: Any) -> list[torch.Tensor]:
    """Contiguous input and workspace, which are alive during the call."""
    workspace = args[0].new_empty(sizes_of(args).forward_bytes(args[12]), dtype=torch.uint8)
    return [*_turned_copy(args[0], args[10]), workspace]


def taken_by_backward(args: Any) -> list[tuple[str, int]]:
    """Buffers in addition to the results, as (name, bytes).

    The gradient of the output is copied for the first half, which computes the gradient of the
    input. In the second half, gradients of the weights take its place. They count as a result.
    """
    x, weights, hx, output, gradient = args[0], args[1], args[4], args[6], args[7]
    batch_first, sizes = args[14], sizes_of(args)
    copies = _turned_copy(output if gradient is None else gradient, batch_first)
    weight_bytes = sum(w.nbytes for w in weights) if args[21][3] else 0
    absent = [state for state in (args[8], args[9])[: sizes.cell.states] if state is None]
    buffers = [
        ("input", sum(each.nbytes for each in _turned_copy(x, batch_first))),
        ("gradient", max(0, sum(each.nbytes for each in copies) - weight_bytes)),
        ("gradients of states", len(absent) * hx.nbytes),
        ("workspace", sizes.backward_bytes()),
    ]
    return [(name, n_bytes) for name, n_bytes in buffers if n_bytes]


def _turned_copy(x: torch.Tensor, batch_first: bool) -> list[torch.Tensor]:
    """Operand, if it must be copied to be contiguous with time first."""
    turned = x.transpose(0, 1) if batch_first and x.dim() == 3 else x
    return [] if turned.is_contiguous() else [turned]


def flops(x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Floating-point operations of a call, from the shapes of its operands."""
    items = math.prod(x[:-1])
    return sum(2 * items * math.prod(shape) for shape in weights if len(shape) == 2)
