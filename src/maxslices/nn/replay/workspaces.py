"""Memory that operators take beside their results: what a replay cannot see.

cuBLAS keeps a workspace for each thread that multiplies matrices. cuDNN takes one for the
time of a convolution; its size follows from the kernel that its heuristics choose, and is
the same every time for the same shapes. `calibrate` measures both on a device.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .reductions import reduction_bytes

Kind = Literal[
    "convolution",
    "input gradient",
    "weight gradient",
    "matrix product",
    "sum",
    "loss",
    "copies",
]
"""What an operator does. Gradients are those of a convolution; a loss is one of each item that
is summed up; copies are of operands that are not contiguous, for kernels that want them so."""

CONVOLUTIONS = ("convolution", "input gradient", "weight gradient")
"""Those whose workspaces are measured."""

MIB = 2**20
CUBLAS_BYTES = 32 * MIB
"""cuBLAS's workspace for each thread on compute capability 9, as torch sets it."""
CUBLASLT_BYTES = MIB
"""cublasLt's, which multiplies and adds a bias in one."""
MULTIPROCESSORS = 132
"""Of an H100 or H200."""

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8}


class OperatorCall(NamedTuple):
    """One call of an operator that may need a workspace."""

    kind: Kind
    op: str
    """Operator, such as "aten.convolution"."""
    shapes: tuple[tuple[int, ...], ...]
    """Of input, weight and output; of the factors of a matrix product; of what is copied; of
    query and key; shape, strides and axes (0, or 1 where it is summed over) of a sum."""
    dtype: str
    """Dtype of the input, such as "float32"."""
    options: str = ""
    """Stride, padding and so on, as one text."""
    channels_last: bool = False
    """Whether the data are stored with channels last."""
    in_backward: bool = False
    """Whether autograd's engine runs it: that is another thread, with workspaces of its own."""
    module: str = ""
    line: str = ""
    stage: str = ""

    @property
    def batch(self) -> int:
        """Images that the call works on."""
        return self.shapes[0][0] if self.shapes and self.shapes[0] else 1

    def anywhere(self) -> OperatorCall:
        """Return this call without where in the model it is: that changes no workspace."""
        return self._replace(module="", line="", stage="")

    @property
    def signature(self) -> str:
        """What the size of the workspace follows from, the batch excepted."""
        parts = [self.kind, self.dtype, *("x".join(map(str, s[1:])) for s in self.shapes[:1])]
        parts += ["x".join(map(str, s)) for s in self.shapes[1:2]]
        parts += [self.options, "channels last" if self.channels_last else "channels first"]
        return " | ".join(parts)


class Workspace(NamedTuple):
    """A workspace."""

    n_bytes: int
    kept_as: str = ""
    """Name under which it stays once it is there; empty if it is given back with the call."""


Points = tuple[tuple[int, int], ...]
"""Pairs (batch, bytes), the batches rising."""


@dataclass(frozen=True, eq=False)
class Workspaces:
    """Sizes of workspaces on one kind of device with certain library versions."""

    origin: str
    """Where they come from, for people: "none", "stated allowance", "measured on ..."."""
    cublas_bytes: int = 0
    """What cuBLAS keeps for each thread that multiplies matrices."""
    table: Mapping[str, Points] = field(default_factory=dict)
    """Measured: bytes at batches, by `OperatorCall.signature`."""
    cublaslt_bytes: int = 0
    """What cublasLt keeps for each thread that multiplies and adds a bias."""
    multiprocessors: int = 0
    """Of the device: sums and attention take buffers of torch's own; 0: they are left out."""
    convolution_rule: bool = False
    """Whether a convolution that is not in the table is given room for its operands.

    cuDNN's kernels for tensor cores want channels last: input, weight and output are copied
    into that order, which takes as much again as they have. Those of 1x1 with stride 1 do
    without, but for the gradient of the weight in volumes; and so do small kernels on few
    channels.
    """

    @classmethod
    def none(cls) -> Workspaces:
        """Return those of a device whose operators need no memory beside their results."""
        return cls("none")

    @classmethod
    def allowance(cls) -> Workspaces:
        """Return what to allow for where nothing was measured: a card such as an H200."""
        return cls("stated allowance", CUBLAS_BYTES, {}, CUBLASLT_BYTES, MULTIPROCESSORS, True)

    def for_call(self, call: OperatorCall) -> tuple[Workspace, ...]:
        """Return the workspaces of a call, all in use at once."""
        workspaces: list[Workspace] = []
        if call.kind == "matrix product":
            thread = "backward" if call.in_backward else "forward"
            workspaces.append(Workspace(self.cublas_bytes, f"cuBLAS, {thread}"))
            if "addmm" in call.op:
                workspaces.append(Workspace(self.cublaslt_bytes, f"cublasLt, {thread}"))
        elif call.kind in CONVOLUTIONS:
            workspaces.append(Workspace(self.for_op(call)))
        elif self.multiprocessors:
            item = _ITEM_BYTES.get(call.dtype, 4)
            if call.kind in ("sum", "loss"):
                shape, strides, axes = call.shapes
                if call.kind == "loss":
                    workspaces.append(Workspace(item * math.prod(shape)))
                found = reduction_bytes(shape, strides, axes, item, self.multiprocessors)
                workspaces += [Workspace(n_bytes) for n_bytes in found]
            else:
                workspaces += [Workspace(item * math.prod(shape)) for shape in call.shapes]
        return tuple(workspace for workspace in workspaces if workspace.n_bytes)

    def for_calls(self, calls: Iterable[OperatorCall]) -> list[tuple[Workspace, ...]]:
        """Return the workspaces of each of many calls, most of which are like others."""
        known: dict[OperatorCall, tuple[Workspace, ...]] = {}
        found = []
        for call in calls:
            like = call.anywhere()
            workspaces = known.get(like)
            if workspaces is None:
                workspaces = known[like] = self.for_call(call)
            found.append(workspaces)
        return found

    def for_op(self, call: OperatorCall) -> int:
        """Return the bytes that a convolution, or a gradient of one, takes while it runs."""
        points = self.table.get(call.signature)
        if points is not None:
            return between(points, call.batch)
        if not self.convolution_rule or call.channels_last:
            return 0
        weight = call.shapes[1]
        taps = math.prod(weight[2:])
        strided = not call.options.startswith(f"stride {'x'.join('1' for _ in weight[2:])} ")
        # The gradient of a weight in volumes is an exception: seen to take its operands again.
        in_volume = call.kind == "weight gradient" and len(weight) == 5
        if taps == 1 and not strided and not in_volume:
            return 0
        if weight[1] <= 4 and taps <= 9 and not (in_volume and taps == 1):
            return 0
        item = _ITEM_BYTES.get(call.dtype, 4)
        operands = sum(item * math.prod(shape) for shape in call.shapes)
        if call.kind == "weight gradient":
            operands += item * math.prod(weight) + 4 * MIB
        return operands

    def missing(self, calls: Iterable[OperatorCall]) -> list[OperatorCall]:
        """Return a call of each signature and batch that was not measured."""
        found = {(call.signature, call.batch): call for call in calls if call.kind in CONVOLUTIONS}
        return [
            call
            for (signature, batch), call in found.items()
            if batch not in dict(self.table.get(signature, ()))
        ]

    def as_plain(self) -> dict[str, Any]:
        """Return numbers and text, for JSON."""
        return {
            "origin": self.origin,
            "cublas_bytes": self.cublas_bytes,
            "cublaslt_bytes": self.cublaslt_bytes,
            "multiprocessors": self.multiprocessors,
            "table": {key: [list(point) for point in points] for key, points in self.table.items()},
            "convolution_rule": self.convolution_rule,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Workspaces:
        """Return what `as_plain` was made of.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is not that.
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
    """Return bytes at a batch: on the lines through the points, and beyond them."""
    batches = [point[0] for point in points]
    right = bisect_left(batches, batch)
    left = right - 1
    if right < len(points) and batches[right] == batch:
        return points[right][1]
    if right == 0:
        return points[0][1]
    if right == len(points):
        # Beyond the last: on the line from one at half as many, as close ones tell no slope.
        right -= 1
        half = bisect_right(batches, batches[right] // 2)
        if half == 0:
            return -(-points[right][1] * batch // batches[right])
        left = half - 1
    (x, y), (x2, y2) = points[left], points[right]
    return max(0, y + -(-(y2 - y) * (batch - x) // (x2 - x)))
