"""One situation in which a method is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..model.arrays import ArraySpec, as_dtype


@dataclass(frozen=True, slots=True)
class Case:
    """A method with the shape, dtype and parameters to run it at.

    Raises
    ------
    UsageError
        If shape or dtype are none.
    """

    method: str
    """Registered name."""
    shape: tuple[int, int, int]
    """Input shape (angles, detector_y, detector_x), slices included."""
    dtype: str = "float32"
    """Input dtype."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that differ from the method's defaults."""
    slice_dim: int | None = None
    """Axis of the slices; None: every axis that the method's pattern allows."""
    make_data: Callable[..., Any] | None = None
    """``make_data(rng, shape, dtype)`` returning a NumPy array, where the plausible values made by
    default (positive, no constant slices) will not do."""
    tolerance: float = 0.0
    """Largest difference that the block size may make, relative to the result's range: 0 means
    bitwise; more only where the order of an FFT's or a sum's operations forbids it."""

    def __post_init__(self) -> None:
        _ = self.spec

    @property
    def spec(self) -> ArraySpec:
        """What is given to the method."""
        return ArraySpec(self.shape, as_dtype(self.dtype))

    def __str__(self) -> str:
        """Return a test id, such as ``median_filter-64x65x67-uint16-kernel_size=5``."""
        parts = [self.method, "x".join(map(str, self.shape)), self.dtype]
        parts += [f"{name}={value}" for name, value in self.parameters.items()]
        if self.slice_dim is not None:
            parts.append(f"dim{self.slice_dim}")
        return "-".join(parts).replace(" ", "")
