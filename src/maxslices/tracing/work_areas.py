"""Memory that operators take beside their results: what a replay cannot see.

cuBLAS keeps a work area for each thread that multiplies matrices. cuDNN takes one for the
time of a convolution; its size follows from the kernel that its heuristics choose, and is
the same every time for the same shapes. `calibrate` measures both on a device.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal["convolution", "input gradient", "weight gradient", "matrix product"]
"""What an operator does; the gradients are those of a convolution."""

MIB = 2**20
CUBLAS_BYTES = 4096 * 1024 * 8 + 4 * 16 * 1024
"""cuBLAS's work area for each thread on compute capability 9 and higher, as torch sets it.

``CUBLAS_WORKSPACE_CONFIG=:4096:8:16:4`` is kept to there: 8 parts of 4 MiB, 4 of 16 KiB.
"""

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8}


class Call(NamedTuple):
    """One call of an operator that may need a work area."""

    kind: Kind
    op: str
    """Operator, such as "aten.convolution"."""
    shapes: tuple[tuple[int, ...], ...]
    """Of input, weight and output; of the two factors of a matrix product."""
    dtype: str
    """Dtype of the input, such as "float32"."""
    options: str = ""
    """Stride, padding and so on, as one text."""
    channels_last: bool = False
    """Whether the data are stored with channels last."""
    in_backward: bool = False
    """Whether autograd's engine runs it: that is another thread, with areas of its own."""
    module: str = ""
    line: str = ""
    stage: str = ""

    @property
    def batch(self) -> int:
        """Images that the call works on."""
        return self.shapes[0][0] if self.shapes and self.shapes[0] else 1

    @property
    def signature(self) -> str:
        """What the size of the work area follows from, the batch excepted."""
        parts = [self.kind, self.dtype, *("x".join(map(str, s[1:])) for s in self.shapes[:1])]
        parts += ["x".join(map(str, s)) for s in self.shapes[1:2]]
        parts += [self.options, "channels last" if self.channels_last else "channels first"]
        return " | ".join(parts)


class Area(NamedTuple):
    """A work area."""

    n_bytes: int
    kept_as: str = ""
    """Name under which it stays once it is there; empty if it is given back with the call."""


Points = tuple[tuple[int, int], ...]
"""Pairs (batch, bytes), the batches rising."""


@dataclass(frozen=True, eq=False)
class WorkAreas:
    """Sizes of work areas on one kind of device with certain library versions."""

    origin: str
    """Where they come from, for people: "none", "stated allowance", "measured on ..."."""
    cublas_bytes: int = 0
    """What cuBLAS keeps for each thread that multiplies matrices."""
    table: Mapping[str, Points] = field(default_factory=dict)
    """Measured: bytes at batches, by `Call.signature`."""
    convolution_rule: bool = False
    """Whether a convolution that is not in the table is given room for its operands.

    cuDNN's kernels for tensor cores want channels last: input, weight and output are copied
    into that order, which takes as much again as they have. Those of 1x1 do without.
    """

    @classmethod
    def none(cls) -> WorkAreas:
        """Return those of a device whose operators need no memory beside their results."""
        return cls("none")

    @classmethod
    def allowance(cls) -> WorkAreas:
        """Return what to allow for where nothing was measured: a card such as an H200."""
        return cls("stated allowance", CUBLAS_BYTES, {}, True)

    def for_call(self, call: Call) -> tuple[Area, ...]:
        """Return the work areas of a call."""
        if call.kind == "matrix product":
            thread = "backward" if call.in_backward else "forward"
            return (Area(self.cublas_bytes, f"cuBLAS, {thread}"),) if self.cublas_bytes else ()
        n_bytes = self.for_op(call)
        return (Area(n_bytes),) if n_bytes else ()

    def for_op(self, call: Call) -> int:
        """Return the bytes that a convolution, or a gradient of one, takes while it runs."""
        points = self.table.get(call.signature)
        if points is not None:
            return between(points, call.batch)
        pointwise = math.prod(call.shapes[1][2:]) == 1
        if not self.convolution_rule or call.channels_last or pointwise:
            return 0
        item = _ITEM_BYTES.get(call.dtype, 4)
        return sum(item * math.prod(shape) for shape in call.shapes)

    def missing(self, calls: tuple[Call, ...]) -> list[Call]:
        """Return a call of each signature that was not measured."""
        found = {
            call.signature: call
            for call in calls
            if call.kind != "matrix product" and call.signature not in self.table
        }
        return list(found.values())

    def as_plain(self) -> dict[str, Any]:
        """Return numbers and text, for JSON."""
        return {
            "origin": self.origin,
            "cublas_bytes": self.cublas_bytes,
            "table": {key: [list(point) for point in points] for key, points in self.table.items()},
            "convolution_rule": self.convolution_rule,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> WorkAreas:
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
            bool(plain["convolution_rule"]),
        )


def between(points: Points, batch: int) -> int:
    """Return bytes at a batch: on the lines through the points, beyond them in proportion."""
    batches = [point[0] for point in points]
    right = bisect_left(batches, batch)
    if right < len(points) and batches[right] == batch:
        return points[right][1]
    if right == 0:
        return points[0][1]
    if right == len(points):
        # The last two points' line, and never less than the last: kernels do not shrink.
        if len(points) == 1:
            return -(-points[0][1] * batch // points[0][0])
        right -= 1
    (x, y), (x2, y2) = points[right - 1], points[right]
    return max(0, y + -(-(y2 - y) * (batch - x) // (x2 - x)))
