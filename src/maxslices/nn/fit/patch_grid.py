"""Grid of the patch shapes that are searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..nn_errors import ModelArgumentError
from ..step.model_arguments import check_divisible, shape_of

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """Shapes that are searched: a start, and increments along axes."""

    start: Shape
    increments: Shape
    axes: Shape
    """Axes that grow."""
    most: Shape
    """Maximum number of increments along each axis."""
    bound: int
    """Maximum multiple of the increments without a volume."""
    has_volume: bool
    """True if a volume bounds the axes."""
    is_isotropic: bool
    """True if all axes are the same multiple of their increments."""

    def twice(self) -> PatchGrid:
        """Grid that begins with a patch of twice the size."""
        first = self.grown(self.start, {a: self.start[a] // self.increments[a] for a in self.axes})
        grown = [
            (size - before) // increment
            for size, before, increment in zip(first, self.start, self.increments, strict=True)
        ]
        most = tuple(m - n for m, n in zip(self.most, grown, strict=True))
        return replace(self, start=first, most=most)

    def scaled(self, k: int) -> Shape:
        """Patch grown k times along all axes, each up to its bound."""
        return self.grown(self.start, dict.fromkeys(self.axes, k))

    def grown(self, shape: Shape, by: dict[int, int]) -> Shape:
        """Patch grown along some axes, each up to its bound."""
        sizes = list(shape)
        for axis, k in by.items():
            most = self.start[axis] + self.most[axis] * self.increments[axis]
            sizes[axis] = min(sizes[axis] + k * self.increments[axis], most)
        return tuple(sizes)

    def along(self, shape: Shape, axis: int, k: int) -> Shape:
        """Patch grown by k increments along one axis."""
        return self.grown(shape, {axis: k})

    def room(self, shape: Shape, axis: int) -> int:
        """Number of increments by which an axis may still grow."""
        return self.most[axis] - (shape[axis] - self.start[axis]) // self.increments[axis]

    def multiple(self, shape: Shape) -> int:
        """Number of increments of a patch along its first axis."""
        return shape[0] // self.increments[0]

    def at_bound(self, shape: Shape) -> bool:
        """True if the bound, and not a volume, stopped an axis."""
        return not self.has_volume and any(self.room(shape, axis) == 0 for axis in self.axes)


def grid_of(
    divisors: Shape,
    axes: Sequence[int] | None,
    start: Sequence[int] | None,
    volume: Sequence[int] | None,
    bound: int,
) -> PatchGrid:
    """Grid for the arguments of `max_patch_shape`."""
    ndim = len(divisors)
    first = divisors if start is None else shape_of(start, "start", ndim)
    check_divisible(first, divisors, "start")
    chosen = tuple(range(ndim)) if axes is None else tuple(axes)
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(ndim)):
        raise ModelArgumentError(
            f"axes {chosen} are not some of the axes 0 to {ndim - 1} of a patch, each once"
        )
    whole = None if volume is None else shape_of(volume, "volume", ndim)
    most = tuple(
        max(0, bound - size // divisor if whole is None else -(-(whole[axis] - size) // divisor))
        for axis, (size, divisor) in enumerate(zip(first, divisors, strict=True))
    )
    has_volume = whole is not None
    is_isotropic = axes is None and start is None and not has_volume
    return PatchGrid(first, divisors, chosen, most, bound, has_volume, is_isotropic)
