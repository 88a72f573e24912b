"""What a method is tried on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Never

from ..core.arrays import ArraySpec, as_dtype
from ..core.method_meta import with_type
from ..core.parameters import matches, nearest
from ..errors import UsageError


@dataclass(frozen=True, slots=True, init=False)
class Case:
    """A method with the shape, dtype and parameters to run it at.

    Raises
    ------
    UsageError
        If a field is not what it must be, or there is none of a name.
    """

    method: str
    """Registered name."""
    shape: tuple[int, int, int]
    """Input shape (angles, detector_y, detector_x), slices included."""
    dtype: str
    """Input dtype; float32 by default."""
    parameters: Mapping[str, Any]
    """Parameters that differ from the method's defaults."""
    slice_dim: int | None
    """Axis of the slices; None: every axis that the method's pattern allows."""
    make_data: Callable[..., Any] | None
    """``make_data(rng, shape, dtype)`` returning a NumPy array, where the plausible values made by
    default (positive, no constant slices) will not do."""
    tolerance: float
    """Largest difference that the block size may make, relative to the result's range: 0 means
    bitwise; more only where the order of an FFT's or a sum's operations forbids it."""

    def __init__(
        self,
        method: str,
        shape: tuple[int, int, int],
        dtype: str = "float32",
        parameters: Mapping[str, Any] | None = None,
        slice_dim: int | None = None,
        make_data: Callable[..., Any] | None = None,
        tolerance: float = 0.0,
        **unknown: Never,
    ) -> None:
        __tracebackhide__ = True  # pytest shows the line of the case
        if unknown:
            names, name = [f.name for f in fields(self)], next(iter(unknown))
            hint = f"{nearest(name, names) or ';'} it has: {', '.join(names)}"
            raise UsageError(f"a Case has no {name!r}{hint}")
        parameters = {} if parameters is None else parameters
        _require("method", method, isinstance(method, str), "the name of a method")
        valid = isinstance(parameters, Mapping)
        _require("parameters", parameters, valid, "a dict of names to values")
        _require("slice_dim", slice_dim, slice_dim in (None, 0, 1), "0, 1 or None")
        _require("make_data", make_data, make_data is None or callable(make_data), "a function")
        valid = matches(float, tolerance) and tolerance >= 0
        _require("tolerance", tolerance, valid, "a number of at least 0")
        try:
            ArraySpec(shape, as_dtype(dtype))
        except UsageError as error:
            raise error.with_traceback(None) from None
        values = (method, shape, dtype, parameters, slice_dim, make_data, tolerance)
        for field, given in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, given)

    @property
    def spec(self) -> ArraySpec:
        """Array that the method is given."""
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
    """A case along one of its axes, on one device."""

    case: Case
    """The method, its data and its parameters."""
    slice_dim: int
    """Axis of the slices."""
    device: str | None
    """Device; None: that of the options."""

    def __str__(self) -> str:
        """Write a test id."""
        dim = "" if self.case.slice_dim is not None else f"-dim{self.slice_dim}"
        return f"{self.case}{dim}"


def _require(name: str, value: Any, valid: bool, what: str) -> None:
    __tracebackhide__ = True
    if not valid:
        raise UsageError(f"{name} of a Case must be {what}, not {with_type(value)}")
