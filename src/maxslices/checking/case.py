"""Test cases of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.arrays import ArraySpec, as_dtype
from ..core.method_meta import with_type
from ..core.parameters import matches
from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Case:
    """Method with the shape, dtype and parameters of a test."""

    method: str
    """Registered name."""
    shape: tuple[int, int, int]
    """Input shape (angles, detector_y, detector_x), including the slices."""
    dtype: str = "float32"
    """Input dtype."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that differ from the method's defaults."""
    slice_dim: int | None = None
    """Axis of the slices, or None for every axis that the method's pattern allows."""
    make_data: Callable[..., Any] | None = None
    """``make_data(rng, shape, dtype)``, which returns the input as a NumPy array. The default
    values are positive, and no slice is constant."""
    tolerance: float = 0.0
    """Largest difference between block sizes, relative to the range of the result. 0 requires
    bitwise equality. Use more only if the order of operations in an FFT or a sum depends on the
    block."""

    def check(self) -> None:
        """Check that all fields are valid.

        Raises
        ------
        UsageError
            If a field is invalid.
        """
        for name, valid, what in (
            ("method", isinstance(self.method, str), "the name of a method"),
            ("parameters", isinstance(self.parameters, Mapping), "a dict of names to values"),
            ("slice_dim", self.slice_dim in (None, 0, 1), "0, 1 or None"),
            ("make_data", self.make_data is None or callable(self.make_data), "a function"),
            (
                "tolerance",
                matches(float, self.tolerance) and self.tolerance >= 0,
                "a number of at least 0",
            ),
        ):
            if not valid:
                typed = with_type(getattr(self, name))
                raise UsageError(f"{name} of a Case must be {what}, not {typed}")
        _ = self.spec

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the input."""
        return ArraySpec(self.shape, as_dtype(self.dtype))

    def __str__(self) -> str:
        """Write a test id, such as ``median_filter-64x65x67-uint16-kernel_size=5``."""
        parts = [self.method, "x".join(map(str, self.shape)), self.dtype]
        parts += [f"{name}={value}" for name, value in self.parameters.items()]
        if self.slice_dim is not None:
            parts.append(f"dim{self.slice_dim}")
        return "-".join(parts).replace(" ", "")


@dataclass(frozen=True, slots=True)
class Situation:
    """Case along one of its axes, on one device."""

    case: Case
    """The method, its data and its parameters."""
    slice_dim: int
    """Axis of the slices."""
    device: str | None
    """Name of the device, or None for the device of the pytest options."""

    def __str__(self) -> str:
        """Write a test id."""
        dim = "" if self.case.slice_dim is not None else f"-dim{self.slice_dim}"
        return f"{self.case}{dim}"
