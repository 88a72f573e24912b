"""The record of a processing method: everything that planning and running it requires.

The decorator `method` stores a frozen `MethodMeta` in the function's attribute ``meta``. Planner,
runner and test harness read this record.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import EstimatorError, ParameterError, UsageError
from .allocators import Device
from .arrays import as_dtype
from .author_code import Callback, defined_at, raised_at, what_raised
from .ledger import LedgerEstimator
from .memory_model import MemoryModel
from .parameters import SUPPLIED, matches, nearest

Pattern = Literal["projection", "sinogram", "all"]
PATTERNS: dict[str, tuple[int, ...]] = {"projection": (0,), "sinogram": (1,), "all": (0, 1)}
"""Patterns, and the slice dims along which a method of each may be cut."""

Halo = int | tuple[int, int]

Quantity = Literal["counts", "transmission", "line integrals", "thickness", "slices"]
"""Quantity that the values of an array represent. "thickness" is the result of phase retrieval,
which is reconstructed like line integrals."""
QUANTITIES: tuple[str, ...] = get_args(Quantity)

_AMPLE_BYTES = 2**40
"""Memory for calls of an estimator that serve to find its dtype only. It exceeds the memory of any
device, because an estimator may reject a small amount."""


class MethodOptions(TypedDict, total=False):
    """Keywords of the decorator `method`, which documents them."""

    calc_max_slices: Callable[..., Any] | None
    halo: Halo | Callable[..., Halo]
    row_reach: Halo | Callable[..., Halo] | None
    output_dims: Callable[..., tuple[int, int]] | None
    output_dtype: DTypeLike | Callable[..., DTypeLike] | None
    output_angles: Callable[..., Any] | None
    side_data: Literal["too", "alone"] | None
    check_values: Callable[..., None] | None
    side_results: Iterable[str]
    sample_slices: Callable[..., Iterable[int]] | None
    combine: Callable[[list[Any]], Any] | None
    array_module: str | None
    records: str | os.PathLike[str] | None
    saved_by_default: bool
    keeps_pixel_size: bool
    host_only: bool
    order_matters: bool | None
    takes: Quantity | tuple[Quantity, ...]
    gives: Quantity | Literal["same"] | None


class Declaration(MethodOptions, total=False):
    """Keywords of `Registry.register`: those of `method`, the pattern, and names in pipelines."""

    pattern: Required[str]
    name: str | None
    """Its name in pipelines, by default the name of the function."""
    module: str | None
    """Its module in pipelines, by default the module of the function."""
    former_names: Mapping[str, str] | None
    """Former names of parameters -> present names. Pipelines may use either."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MethodMeta:
    """Declarations of a registered method."""

    function: Callable[..., Any]
    """The method: takes a 3D array and keyword parameters, returns a 3D array (or side results)."""
    name: str
    """Name in pipelines."""
    module: str
    """Dotted module name. Together with the name it identifies the method."""
    pattern: Pattern
    """Which slices it works on: "projection" (dim 0), "sinogram" (dim 1) or "all" (either)."""
    estimator: Callable[..., Any] | None = None
    """``calc_max_slices(slice_dim, other_dims, dtype, available_memory, **kwargs)``, or None."""
    halo: Halo | Callable[..., Halo] = 0
    """Slices needed around a block: a number, (before, after), or a function of the parameters."""
    output_dims: Callable[..., tuple[int, int]] | None = None
    """``output_dims(other_dims, **kwargs)`` of the result; None if they do not change."""
    declared_dtype: DTypeLike | Callable[..., DTypeLike] | None = None
    """Dtype of the result, or ``(dtype, **kwargs) -> dtype``; None: the estimator returns it."""
    output_angles: Callable[..., Any] | None = None
    """``output_angles(angles, **kwargs)`` of the result; None if they do not change."""
    side_data: Literal["too", "alone"] | None = None
    """Whether it changes flats and darks "too", or "alone"; None if it does not change them."""
    check_values: Callable[..., None] | None = None
    """``check_values(**kwargs)`` raises ValueError for invalid values."""
    row_reach: Halo | Callable[..., Halo] | None = None
    """Rows above and below that a row of the result depends on; None if equal to its halo or
    unknown."""
    host_only: bool = False
    """Whether the method computes on the host, and copies blocks from and to the device."""
    former_names: Mapping[str, str] = field(default_factory=dict)
    """Names of parameters in earlier releases of their package -> present names."""
    saved_by_default: bool = False
    """Whether its result is saved if the pipeline has no ``save_result``."""
    takes: tuple[Quantity, ...] = ()
    """Quantities that its data may represent; empty if any or unknown."""
    gives: Quantity | Literal["same"] | None = None
    """Quantity of its result, "same" as its data, or None if unknown."""
    keeps_pixel_size: bool = False
    """Whether the pixel size is unchanged although the number of pixels changes."""
    order_matters: bool | None = None
    """Whether the result depends on the order in which projections are stored; None: decided by
    `depends_on_order`."""
    side_results: tuple[str, ...] = ()
    """Names of the values that it returns instead of an array. The data are then unchanged."""
    sample_slices: Callable[..., Iterable[int]] | None = None
    """``sample_slices(n_slices, **kwargs)``: the only slices that the side results depend on."""
    combine: Callable[[list[Any]], Any] | None = None
    """Combines the side results of all blocks into one, if they depend on all slices."""
    array_module: str | None = None
    """"torch" where it takes and returns tensors; None: NumPy's or CuPy's arrays."""
    records: Path | None = None
    """File of records shipped with the method, for planning without a GPU."""
    parameters: Mapping[str, inspect.Parameter] = field(default_factory=dict)
    """The function's parameters after the data, including those that the runner supplies."""
    accepts_any: bool = False
    """Whether the function accepts ``**kwargs``, and thus parameters of any name."""
    callbacks: Mapping[str, Callback] = field(default_factory=dict)
    """The functions among these declarations, by keyword of the decorator."""

    def __repr__(self) -> str:
        return f"<{self.pattern} method {self.full_name}>"

    @property
    def full_name(self) -> str:
        """``module.name``, unique in a registry."""
        return f"{self.module}.{self.name}"

    @property
    def supplied(self) -> tuple[str, ...]:
        """Names of the parameters that the runner supplies."""
        return tuple(name for name in SUPPLIED if name in self.parameters)

    @property
    def estimator_gives_dtype(self) -> bool:
        """True if a hand-written ``calc_max_slices`` returns the output dtype."""
        by_hand = self.estimator is not None and not isinstance(self.estimator, LedgerEstimator)
        return by_hand and self.declared_dtype is None

    def slice_dims(self) -> tuple[int, ...]:
        """Axes along which its input may be cut."""
        return PATTERNS[self.pattern]

    def merged(self, /, **kwargs: Any) -> dict[str, Any]:
        """Merge the user's parameters over the function's own defaults.

        Raises
        ------
        ParameterError
            If the method does not have one of the parameters.
        """
        if not self.accepts_any:
            for name in kwargs:
                if name not in self.parameters:
                    hint = nearest(name, self.parameters) or (
                        f"; it has: {', '.join(self.parameters) or 'none'}"
                    )
                    raise ParameterError(f"{self.full_name} has no parameter {name!r}{hint}")
        defaults = {
            name: p.default for name, p in self.parameters.items() if p.default is not p.empty
        }
        return defaults | kwargs

    def calc_max_slices(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: DTypeLike,
        available_memory: int,
        **kwargs: Any,
    ) -> tuple[int, np.dtype[Any]]:
        """Ask the method's own estimator how many slices fit.

        All arguments may be passed by position or by name.

        Parameters
        ----------
        slice_dim : int
            Axis along which the data are cut, 0 or 1.
        other_dims : (int, int)
            The two dims that remain, in array order.
        dtype : dtype-like
            Input dtype. The estimator receives a NumPy scalar such as ``np.float32()`` unchanged,
            and anything else as a `numpy.dtype`. If it reads ``nbytes`` of that, as httomo's
            estimators do, it is called again with a scalar.
        available_memory : int
            Bytes.
        **kwargs
            Parameters of the method. Its defaults are added. ``device`` ("cuda" or "cpu") is
            passed to estimators that name it, unless the method has a parameter of that name.
            For parameters that are named like one of the arguments above, such as ``dtype``, use
            `fitting_slices`.

        Returns
        -------
        (int, numpy.dtype)
            Slices that fit, and the dtype of the method's result.

        Raises
        ------
        EstimatorError
            If the method has no estimator, or the estimator raises or returns an invalid value.
        UsageError
            If an argument is invalid.
        """
        device = None
        if "device" in kwargs and "device" not in self.parameters:
            device = kwargs.pop("device")
            if device not in ("cuda", "cpu"):
                raise UsageError(f"device must be 'cuda' or 'cpu', not {with_type(device)}")
        return self.fitting_slices(slice_dim, other_dims, dtype, available_memory, kwargs, device)

    def fitting_slices(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: DTypeLike,
        available_memory: int,
        parameters: Mapping[str, Any],
        device: Device | None = None,
    ) -> tuple[int, np.dtype[Any]]:
        """`calc_max_slices` with the method's parameters in a mapping."""
        if not (matches(int, slice_dim) and slice_dim in (0, 1)):
            raise UsageError(f"slice_dim must be 0 or 1, not {with_type(slice_dim)}")
        if not matches(int, available_memory):
            raise UsageError(
                "available_memory must be an int of bytes, such as 16 * 10**9, not "
                f"{with_type(available_memory)}"
            )
        if not _are_dims(other_dims):
            raise UsageError(f"other_dims must be two positive ints, not {with_type(other_dims)}")
        question = slice_dim, other_dims, dtype, parameters, device
        if (model := self.ledger_model(*question)) is not None:
            n_slices, returned = model.max_slices(available_memory), None
        else:
            n_slices, returned = self.bound_estimator(*question)(available_memory)
            if n_slices < 0:
                raise EstimatorError(
                    f"{self.full_name}: {self.callbacks['calc_max_slices'].name} returned "
                    f"{n_slices} slices for {available_memory} bytes, a negative number: it must "
                    f"return 0 if not one slice fits{defined_at(self.estimator)}"
                )
        return n_slices, self._output_dtype(dtype, returned, parameters)

    def ledger_model(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: DTypeLike,
        parameters: Mapping[str, Any],
        device: Device | None,
    ) -> MemoryModel | None:
        """Memory model of a method with a ledger; None for other methods.

        Errors of the author's function name the method and the call.
        """
        if not isinstance(self.estimator, LedgerEstimator):
            return None
        callback = self.callbacks["calc_max_slices"]
        keywords = callback.arguments(self.merged(**parameters))
        element, device = as_dtype(dtype), device or "cuda"
        return self.estimator.slices_model(
            slice_dim, other_dims, element, device, callback.named, **keywords
        )

    def bound_estimator(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: DTypeLike,
        parameters: Mapping[str, Any],
        device: Device | None = None,
    ) -> Callable[[int], tuple[int, Any]]:
        """Hand-written estimator as a function of the available memory.

        `declared_model` calls it some hundred times for a plan. For less memory than its fixed
        costs it may return a negative number.

        Returns
        -------
        callable
            From bytes to (slices that fit, dtype that the estimator returned).
        """
        if self.estimator is None:
            raise EstimatorError(
                f"{self.full_name}{defined_at(self.function)} has no memory estimator: register it "
                "with calc_max_slices, which `maxslices measure --suggest` can write"
            )
        callback = self.callbacks["calc_max_slices"]
        context = {} if device is None else {"device": device}
        keywords = callback.arguments(self.merged(**parameters), **context)
        element = dtype if isinstance(dtype, np.generic) else as_dtype(dtype)

        def ask(available_memory: int) -> tuple[int, Any]:
            leading = slice_dim, other_dims, element, available_memory
            answer = callback.call(leading, keywords)
            fault = ""
            if not isinstance(answer, tuple) or len(answer) != 2:
                fault = f"{with_type(answer)}: it must return (max_slices, output dtype)"
            elif type(answer[0]) is not int and not matches(int, answer[0]):
                fault = (
                    f"{with_type(answer[0])} instead of an int as the number of slices: "
                    "divide with //"
                )
            if fault:
                raise EstimatorError(
                    f"{callback.describe_call(leading, keywords)} returned {fault}"
                )
            return int(answer[0]), answer[1]

        return ask

    def _call(
        self, what: str, kwargs: Mapping[str, Any], *leading: Any, **context: Any
    ) -> tuple[Any, Callable[[], str]]:
        """Return value of a declared function, and a function that describes the call."""
        callback = self.callbacks[what]
        keywords = callback.arguments(self.merged(**kwargs), **context)
        return callback.call(leading, keywords), lambda: callback.describe_call(leading, keywords)

    def output_dtype(
        self, slice_dim: int, other_dims: tuple[int, int], dtype: DTypeLike, /, **kwargs: Any
    ) -> np.dtype[Any]:
        """Dtype of the result for an input of `dtype`."""
        returned = None
        if self.estimator_gives_dtype:
            returned = self.bound_estimator(slice_dim, other_dims, dtype, kwargs)(_AMPLE_BYTES)[1]
        return self._output_dtype(dtype, returned, kwargs)

    def refusal(self, parameters: Mapping[str, Any], unknown: Iterable[str] = ()) -> str | None:
        """Reason why the method refuses known values; None if they are valid.

        Parameters
        ----------
        parameters : mapping
            Parameters with known values.
        unknown : iterable of str
            Parameters whose values are not known yet.
        """
        if self.check_values is None:
            return None
        callback, merged = self.callbacks["check_values"], self.merged(**parameters)
        missing = set(unknown) - parameters.keys()
        if missing & set(callback.keywords):
            return None
        values = {
            name: value
            for name, value in merged.items()
            if (callback.accepts_all or name in callback.keywords) and name not in missing
        }
        try:
            self.check_values(**values)
        except ValueError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - the author's code
            place = raised_at(error, self.check_values)
            return f"its check_values raised {what_raised(error)}{place}"
        return None

    def halo_slices(self, /, **kwargs: Any) -> tuple[int, int]:
        """Slices (before, after) that the method needs around its block."""
        return self._pair("halo", self.halo, kwargs)

    def rows_reached(self, /, **kwargs: Any) -> int:
        """Rows above and below that a row of the result depends on, as declared."""
        if self.side_results:
            return 0
        if self.row_reach is not None:
            return max(self._pair("row_reach", self.row_reach, kwargs))
        # The halo of a method on projections counts projections. 3D methods reach as many rows.
        return max(self.halo_slices(**kwargs))

    def _pair(self, what: str, halo: Any, kwargs: Mapping[str, Any]) -> tuple[int, int]:
        if callable(halo):
            halo, _ = self._call(what, kwargs)
        pair = halo_pair(halo)
        if pair is None:
            place = defined_at(self.function)
            raise EstimatorError(f"{self.full_name}: {HALO_IS[what]}, not {with_type(halo)}{place}")
        return pair

    def sampled_range(self, n_slices: int, /, **kwargs: Any) -> range:
        """Range of the slices that the side results depend on.

        Empty if the method runs on every block.

        Raises
        ------
        ParameterError
            If the method names slices outside the array.
        """
        if self.sample_slices is None:
            return range(0)
        named, call_text = self._call("sample_slices", kwargs, n_slices)
        try:
            indices = sorted(named)
        except TypeError:
            indices = [named]
        if not all(matches(int, each) for each in indices):
            raise EstimatorError(f"{call_text()} must return slice indices, not {with_type(named)}")
        if not indices or indices[0] < 0 or indices[-1] >= n_slices:
            shown = f"slices {indices[0]} to {indices[-1]}" if indices else "no slices"
            raise ParameterError(
                f"{self.name} samples {shown}, but the data have {n_slices} (0 to {n_slices - 1})"
            )
        return range(int(indices[0]), int(indices[-1]) + 1)

    @property
    def reconstructs(self) -> bool:
        """True if the method reconstructs slices from projections."""
        return self.saved_by_default and "angles" in self.supplied

    def depends_on_order(self, parameters: Mapping[str, Any]) -> bool:
        """True if the result may depend on the order in which projections are stored.

        Unless declared otherwise, this is true for methods without angles that receive whole
        sinograms, or a halo around a block.
        """
        if self.order_matters is not None:
            return self.order_matters
        if {"angles", "scan_angles"} & set(self.supplied):
            return False
        return self.pattern == "sinogram" or self.halo_slices(**parameters) != (0, 0)

    @property
    def declares_dims(self) -> bool:
        """True if the shape of the result is declared, so that no call is needed to find it."""
        return self.estimator is not None or self.output_dims is not None

    def output_other_dims(
        self, slice_dim: int, other_dims: tuple[int, int], /, **kwargs: Any
    ) -> tuple[int, int]:
        """Other two dims of the result for an input with `other_dims`."""
        if self.output_dims is None:
            return other_dims
        dims, call_text = self._call("output_dims", kwargs, other_dims, slice_dim=slice_dim)
        if not _are_dims(dims):
            raise EstimatorError(
                f"{call_text()} must return two positive ints, not {with_type(dims)}"
            )
        return int(dims[0]), int(dims[1])

    def angles_after(
        self, angles: NDArray[np.float32], parameters: Mapping[str, Any]
    ) -> NDArray[np.float32]:
        """Angles of the projections of the result, in radians, computed from `angles`."""
        if self.output_angles is None:
            return angles
        answer, call_text = self._call("output_angles", parameters, angles)
        array = np.asarray(answer)
        if array.ndim != 1 or array.dtype.kind != "f":
            raise EstimatorError(
                f"{call_text()} must return a one-dimensional array of floats, not "
                f"{array.ndim}-dimensional {array.dtype}"
            )
        return array.astype(np.float32, copy=False)

    def _output_dtype(
        self, dtype: DTypeLike, returned: Any, kwargs: Mapping[str, Any]
    ) -> np.dtype[Any]:
        source = as_dtype(dtype)
        declared, origin = self.declared_dtype, "output_dtype"
        if "output_dtype" in self.callbacks:
            declared, _ = self._call("output_dtype", kwargs, source)
        if declared is None:
            declared, origin = source if returned is None else returned, "calc_max_slices"
        try:
            result = as_dtype(declared)
        except UsageError as error:
            place = defined_at(self.function)
            raise EstimatorError(
                f"{self.full_name}: {origin} gives an invalid dtype: {error}{place}"
            ) from None
        with suppress(UsageError):
            if returned is not None and as_dtype(returned) != result:
                raise EstimatorError(
                    f"{self.full_name}: output_dtype gives {result}, but calc_max_slices gives "
                    f"{as_dtype(returned)}{defined_at(self.function)}"
                )
        return result


HALO_IS = {
    "halo": "halo must be a number of slices of at least 0, or two: (before, after)",
    "row_reach": "row_reach must be a number of rows of at least 0, or two: (above, below)",
}


def halo_pair(halo: Any) -> tuple[int, int] | None:
    """Read a halo as (before, after); None if invalid."""
    pair = halo if isinstance(halo, tuple | list) else (halo, halo)
    if len(pair) != 2 or not all(matches(int, n) and n >= 0 for n in pair):
        return None
    return int(pair[0]), int(pair[1])


def _are_dims(dims: Any) -> bool:
    return (
        isinstance(dims, tuple | list)
        and len(dims) == 2
        and all(matches(int, n) and n > 0 for n in dims)
    )


def with_type(value: Any) -> str:
    """Show a value and its type, for an error message."""
    return f"{value!r} ({type(value).__name__})"
