"""The shapes of patches that are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .model_arguments import check_divisible, shape_of
from .nn_errors import ModelArgumentError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """The shapes that are looked at."""

    start: Shape
    increments: Shape
    axes: Shape
    """Axes that grow."""
    most: Shape
    """Increments that each axis may grow by."""
    bound: int
    """The most that a multiple may be, without a volume."""
    has_volume: bool
    """Whether a volume says how far axes grow."""
    is_isotropic: bool
    """Whether all axes are the same multiple of their increments."""

    def twice(self) -> PatchGrid:
        """Return the same from a patch of twice the size on, as far as the axes go."""
        first = self.grown(self.start, {a: self.start[a] // self.increments[a] for a in self.axes})
        grown = [
            (size - before) // increment
            for size, before, increment in zip(first, self.start, self.increments, strict=True)
        ]
        most = tuple(m - n for m, n in zip(self.most, grown, strict=True))
        return replace(self, start=first, most=most)

    def scaled(self, k: int) -> Shape:
        """Return the patch that has grown k times along all its axes, as far as they go."""
        return self.grown(self.start, dict.fromkeys(self.axes, k))

    def grown(self, shape: Shape, by: dict[int, int]) -> Shape:
        """Return a patch that has grown along axes by increments, as far as they go."""
        sizes = list(shape)
        for axis, k in by.items():
            most = self.start[axis] + self.most[axis] * self.increments[axis]
            sizes[axis] = min(sizes[axis] + k * self.increments[axis], most)
        return tuple(sizes)

    def along(self, shape: Shape, axis: int, k: int) -> Shape:
        """Return a patch that has grown by k increments along an axis."""
        return self.grown(shape, {axis: k})

    def room(self, shape: Shape, axis: int) -> int:
        """Return how many increments an axis may still grow by."""
        return self.most[axis] - (shape[axis] - self.start[axis]) // self.increments[axis]

    def multiple(self, shape: Shape) -> int:
        """Return how many increments a patch has along its first axis."""
        return shape[0] // self.increments[0]

    def at_bound(self, shape: Shape) -> bool:
        """Tell whether the bound, and not a volume, kept an axis from growing."""
        return not self.has_volume and any(self.room(shape, axis) == 0 for axis in self.axes)


def grid_of(
    divisors: Shape,
    axes: Sequence[int] | None,
    start: Sequence[int] | None,
    volume: Sequence[int] | None,
    bound: int,
) -> PatchGrid:
    """Return the grid of the arguments of `max_patch_shape`."""
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
