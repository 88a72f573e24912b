"""Workspaces: memory that operators take in addition to their results, which a replay cannot see.

cuBLAS keeps a workspace for each thread that multiplies matrices. cuDNN takes a workspace during a
convolution. Its size depends on the kernel that cuDNN's heuristics choose, and is always the same
for the same shapes. `measured_workspaces` measures both on a device.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ...core.cufft import work_bytes
from ...core.units import MIB
from .convolution_allowance import convolution_bytes

MAX_THREADS = 512
"""Threads of a block (``MAX_NUM_THREADS``)."""
WARP = 32
"""Threads of a warp, on every device that torch supports."""
THREADS_PER_MULTIPROCESSOR = 2048
"""Concurrent threads of a multiprocessor on compute capability 8.0 and 9.0."""
LEAST_VALUES, MOST_VALUES = 16, 256
"""Least items that a thread adds, and most items before the work is split over blocks
(``min_values_per_thread`` and ``max_values_per_thread`` in ``setReduceConfig``)."""


def reduction_bytes(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    reduced: tuple[int, ...],
    item_bytes: int,
    multiprocessors: int,
) -> tuple[int, int]:
    """Bytes of the buffer and of the counters of a sum, or (0, 0).

    Parameters
    ----------
    shape, strides : tuple of int
        Shape and strides of the operand, in items.
    reduced : tuple of int
        1 for each axis that is summed over, else 0.
    item_bytes : int
        Bytes per item of the operand. Sums have 4 bytes, or 8 in double precision.
    multiprocessors : int
        Multiprocessors of the device.
    """
    inner = _merged([(n, s) for n, s, r in zip(shape, strides, reduced, strict=True) if r])
    outer = _merged([(n, s) for n, s, r in zip(shape, strides, reduced, strict=True) if not r])
    n_inputs, n_outputs = math.prod(n for n, _ in inner), math.prod(n for n, _ in outer)
    if not inner or not n_inputs or not n_outputs:
        return 0, 0
    along_inner = not outer or inner[0][1] < outer[0][1]
    vector = 1
    if along_inner:
        width, height = n_inputs, n_outputs
        if inner[0][1] == 1 and width >= 128 and len(inner) == 1 and not outer:
            width //= 4
    else:
        width, height = n_outputs, n_inputs
        if outer[0][1] == 1:
            vector = _vector(outer[0][0], [s for _, s in (*inner, *outer[1:])])
            width //= vector
    limit = MAX_THREADS // vector
    wide, high = (_power(n) if n < limit else limit for n in (width, height))
    block_x = min(wide, WARP)
    block_y = min(high, limit // block_x)
    block_x = min(wide, limit // block_y)
    values = -(-n_inputs // block_x) if along_inner else n_inputs
    step_output = 1 if along_inner else block_x
    if not (values >= block_y * LEAST_VALUES or values >= MOST_VALUES):
        return 0, 0  # each warp computes a result of its own
    values = -(-values // block_y)
    grid = -(-(n_outputs // vector) // step_output)
    target = multiprocessors * (THREADS_PER_MULTIPROCESSOR // (block_x * block_y))
    if values < MOST_VALUES or grid > target:
        return 0, 0
    blocks = max(min(-(-target // grid), -(-values // LEAST_VALUES)), -(-values // MOST_VALUES))
    if blocks <= 1:
        return 0, 0
    size = max(4, item_bytes) * n_outputs * blocks
    return size * (1 if along_inner else block_x * vector), 4 * grid


def _merged(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Axes (length, stride) by increasing stride, with contiguous neighbours merged."""
    merged: list[tuple[int, int]] = []
    for n, stride in sorted((a for a in axes if a[0] != 1), key=lambda axis: axis[1]):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = merged[-1][0] * n, merged[-1][1]
        else:
            merged.append((n, stride))
    return merged or ([(1, 1)] if axes else [])


def _vector(length: int, strides: list[int]) -> int:
    """Number of neighbouring results that a thread computes."""
    vector = 4
    while vector > 1 and any(n % vector for n in (length, *strides)):
        vector //= 2
    return vector


def _power(n: int) -> int:
    """Largest power of two up to n."""
    return int(1 << (max(1, n).bit_length() - 1))


Kind = Literal[
    "convolution",
    "input gradient",
    "weight gradient",
    "matrix product",
    "sum",
    "loss",
    "dropout state",
    "Fourier transform",
]
"""Kind of operator. Gradients are those of a convolution. A loss is computed for each item and then
summed. A dropout state belongs to cuDNN's random generator for recurrent layers. A Fourier
transform is one plan of cuFFT."""

CONVOLUTIONS = ("convolution", "input gradient", "weight gradient")
"""Kinds whose workspaces are measured."""

CUBLAS_BYTES = 32 * MIB
"""Workspace that torch allocates for cuBLAS per thread on compute capability 9."""
CUBLASLT_BYTES = MIB
"""Workspace that torch allocates for cublasLt, which multiplies and adds a bias in one kernel."""
DROPOUT_BYTES = 1024 * 48
"""State of cuDNN's random generator per multiprocessor: 1024 generators of 48 bytes (H200, cuDNN
9.19, 2026-11-26). torch creates it once and keeps it."""
MULTIPROCESSORS = 132
"""Multiprocessors of an H100 or H200."""

STATED = "assumed, not measured"
"""Origin of sizes that were not measured on the device."""

ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8}


class OperatorCall(NamedTuple):
    """Call of an operator that may need a workspace."""

    kind: Kind
    op: str
    """Operator, such as "aten.convolution"."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of input, weight and output of a convolution, or of the factors of a matrix product.
    For a sum: shape, strides, and 1 for each axis that is summed over. For a Fourier transform:
    number of transforms, and the lengths of their axes on the real side."""
    dtype: str
    """Dtype of the input, such as "float32"."""
    options: str = ""
    """Stride, padding, dilation and groups of a convolution as one text, or kind of a transform."""
    channels_last: bool = False
    """Whether the data are stored with channels last."""
    in_backward: bool = False
    """Whether autograd's engine runs it, in another thread with its own workspaces."""
    module: str = ""
    line: str = ""
    stage: str = ""

    @property
    def batch(self) -> int:
        """Images in the batch."""
        return self.shapes[0][0] if self.shapes and self.shapes[0] else 1

    @property
    def named_options(self) -> dict[str, str]:
        """Options of a convolution by name."""
        words = self.options.split()
        return dict(zip(words[::2], words[1::2], strict=True))

    def anywhere(self) -> OperatorCall:
        """Call without its location in the model, on which workspaces do not depend."""
        return self._replace(module="", line="", stage="")

    @property
    def signature(self) -> str:
        """Text of all properties that determine the size of the workspace, except the batch."""
        parts = [self.kind, self.dtype, *("x".join(map(str, s[1:])) for s in self.shapes[:1])]
        parts += ["x".join(map(str, s)) for s in self.shapes[1:2]]
        parts += [self.options, "channels last" if self.channels_last else "channels first"]
        return " | ".join(parts)


class Workspace(NamedTuple):
    """Memory that an operator takes in addition to its results."""

    n_bytes: int
    kept_as: str = ""
    """Name under which it stays allocated, or "" if it is freed with the call."""


Points = tuple[tuple[int, int], ...]
"""Pairs (batch, bytes), by increasing batch."""


@dataclass(frozen=True, eq=False)
class Workspaces:
    """Sizes of workspaces on one kind of device with certain versions of the libraries."""

    origin: str
    """Origin of the sizes: "none", `STATED` or "measured on ..."."""
    cublas_bytes: int = 0
    """Bytes that cuBLAS keeps per thread that multiplies matrices."""
    table: Mapping[str, Points] = field(default_factory=dict)
    """Measured bytes at batches, by `OperatorCall.signature`."""
    cublaslt_bytes: int = 0
    """Bytes that cublasLt keeps per thread that multiplies and adds a bias."""
    multiprocessors: int = 0
    """Multiprocessors of the device, which determine the buffers of sums. 0 omits the buffers."""
    convolution_rule: bool = False
    """Whether convolutions that are not in the table have the workspace of `convolution_bytes`."""

    @classmethod
    def none(cls) -> Workspaces:
        """No workspaces: operators need memory only for their results."""
        return cls("none")

    @classmethod
    def allowance(cls) -> Workspaces:
        """Allowance without measurements: the sizes of an H200."""
        return cls(STATED, CUBLAS_BYTES, {}, CUBLASLT_BYTES, MULTIPROCESSORS, True)

    def for_call(self, call: OperatorCall) -> tuple[Workspace, ...]:
        """Workspaces of a call, all in use at once."""
        workspaces: list[Workspace] = []
        if call.kind == "matrix product":
            thread = "backward" if call.in_backward else "forward"
            workspaces.append(Workspace(self.cublas_bytes, f"cuBLAS, {thread}"))
            if "addmm" in call.op:
                workspaces.append(Workspace(self.cublaslt_bytes, f"cublasLt, {thread}"))
        elif call.kind in CONVOLUTIONS:
            workspaces.append(Workspace(self.for_op(call)))
        elif call.kind == "dropout state":
            workspaces.append(Workspace(self.multiprocessors * DROPOUT_BYTES, "cuDNN, dropout"))
        elif call.kind == "Fourier transform":
            ((batch, *lengths),) = call.shapes
            is_single = call.dtype not in ("float64", "complex128")
            kind: Any = call.options
            workspaces.append(Workspace(work_bytes(batch, tuple(lengths), kind, is_single)))
        elif self.multiprocessors:
            item = ITEM_BYTES.get(call.dtype, 4)
            shape, strides, axes = call.shapes
            if call.kind == "loss":
                workspaces.append(Workspace(item * math.prod(shape)))
            buffers = reduction_bytes(shape, strides, axes, item, self.multiprocessors)
            workspaces += [Workspace(n_bytes) for n_bytes in buffers]
        return tuple(workspace for workspace in workspaces if workspace.n_bytes)

    def for_calls(self, calls: Iterable[OperatorCall]) -> list[tuple[Workspace, ...]]:
        """Workspaces of many calls, computed once for equal calls."""
        by_call: dict[OperatorCall, tuple[Workspace, ...]] = {}
        rows = []
        for call in calls:
            key = call.anywhere()
            if key not in by_call:
                by_call[key] = self.for_call(call)
            rows.append(by_call[key])
        return rows

    def for_op(self, call: OperatorCall) -> int:
        """Workspace of a convolution, or of a gradient of one."""
        points = self.table.get(call.signature)
        if points is not None:
            return between(points, call.batch)
        if not self.convolution_rule:
            return 0
        item = ITEM_BYTES.get(call.dtype, 4)
        return convolution_bytes(
            call.kind, call.shapes, call.named_options, item, self.multiprocessors,
            call.channels_last,
        )  # fmt: skip

    def missing(self, calls: Iterable[OperatorCall]) -> list[OperatorCall]:
        """One call for each signature and batch that is not in the table."""
        unique = {(call.signature, call.batch): call for call in calls if call.kind in CONVOLUTIONS}
        return [
            call
            for (signature, batch), call in unique.items()
            if batch not in dict(self.table.get(signature, ()))
        ]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Workspaces:
        """Create from the plain values of the fields, as stored in JSON.

        Raises
        ------
        KeyError, TypeError, ValueError
            If `plain` is invalid.
        """
        table = {
            str(key): tuple((int(batch), int(size)) for batch, size in points)
            for key, points in plain["table"].items()
        }
        return cls(
            str(plain["origin"]),
            int(plain["cublas_bytes"]),
            table,
            int(plain["cublaslt_bytes"]),
            int(plain["multiprocessors"]),
            bool(plain["convolution_rule"]),
        )


def between(points: Points, batch: int) -> int:
    """Interpolate the bytes at a batch linearly. Beyond the last point they are proportional."""
    right = bisect_left(points, (batch, 0))
    if right == 0:
        return points[0][1]
    if right == len(points):
        x, y = points[-1]
        return -(-y * batch // x)
    (x, y), (x2, y2) = points[right - 1 : right + 1]
    return max(0, y + -(-(y2 - y) * (batch - x) // (x2 - x)))
