"""A processing method and what it needs to be planned.

The decorator `method` returns the function unchanged, with a frozen `MethodMeta` as its
attribute ``meta``. That record is what planner, runner and test harness read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from .arrays import as_dtype
from .callback import Callback, make_callback, name_of, signature_of
from .errors import EstimatorError, ParameterError, RegistrationError, UsageError
from .ledger import LedgerEstimator
from .parameters import SUPPLIED, keyword_parameters, nearest

if TYPE_CHECKING:
    from .registry import Registry

Pattern = Literal["projection", "sinogram", "all"]
PATTERNS: dict[str, tuple[int, ...]] = {"projection": (0,), "sinogram": (1,), "all": (0, 1)}
"""Patterns, and the slice dims along which a method of each may be cut."""

Halo = int | tuple[int, int]
F = TypeVar("F", bound=Callable[..., Any])

_AMPLE_BYTES = 2**40
"""Memory that an estimator is offered when only the dtype that it returns is of interest."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MethodMeta:
    """What a registered method declares."""

    function: Callable[..., Any]
    """The method: takes a 3D array and keyword parameters, returns a 3D array (or side results)."""
    name: str
    """Name in pipelines."""
    module: str
    """Dotted module; with the name it identifies the method."""
    pattern: Pattern
    """Which slices it works on: "projection" (dim 0), "sinogram" (dim 1) or "all" (either)."""
    estimator: Callable[..., Any] | None = None
    """``calc_max_slices(slice_dim, other_dims, dtype, available_memory, **kwargs)``, or None."""
    halo: Halo | Callable[..., Halo] = 0
    """Slices needed around a block: a number, (before, after), or a function of the parameters."""
    output_dims: Callable[..., tuple[int, int]] | None = None
    """``output_dims(other_dims, **kwargs)`` of the result; None where they do not change."""
    declared_dtype: DTypeLike | Callable[..., DTypeLike] | None = None
    """Dtype of the result, or ``(dtype, **kwargs) -> dtype``; None: what the estimator returns."""
    tile_halo: Halo | Callable[..., Halo] | None = None
    """Pixels needed around a tile of a slice: one number, two along the slice's dims, or a function
    of the parameters; None where it needs whole slices."""
    side_results: tuple[str, ...] = ()
    """Names of what it returns in place of an array; the data then pass through unchanged."""
    looks_at: Callable[..., Iterable[int]] | None = None
    """``looks_at(n_slices, **kwargs)``: the only slices that the side results depend on."""
    combine: Callable[[list[Any]], Any] | None = None
    """Makes one side result of those of all blocks, where every slice is looked at."""
    array_module: str | None = None
    """"torch" where it takes and returns tensors; None: NumPy's or CuPy's arrays."""
    parameters: Mapping[str, inspect.Parameter] = field(default_factory=dict)
    """The function's parameters after the data, those the runner supplies included."""
    accepts_any: bool = False
    """Whether the function takes ``**kwargs``, and with it parameters of any name."""
    callbacks: Mapping[str, Callback] = field(default_factory=dict)
    """The functions among these declarations, by field of the decorator, ready to be called."""

    def __repr__(self) -> str:
        return f"<{self.pattern} method {self.full_name}>"

    @property
    def full_name(self) -> str:
        """``module.name``, unique in a registry."""
        return f"{self.module}.{self.name}"

    @property
    def supplied(self) -> tuple[str, ...]:
        """Names of the parameters that the runner fills in, if the user gives none."""
        return tuple(name for name in SUPPLIED if name in self.parameters)

    def slice_dims(self) -> tuple[int, ...]:
        """Return the axes along which its input may be cut."""
        return PATTERNS[self.pattern]

    def merged(self, **kwargs: Any) -> dict[str, Any]:
        """Return the user's parameters over the function's own defaults.

        Raises
        ------
        ParameterError
            If it has no parameter of a name given.
        """
        if not self.accepts_any:
            for name in kwargs:
                if name not in self.parameters:
                    known = nearest(name, self.parameters) or (
                        f"; it has: {', '.join(self.parameters) or 'none'}"
                    )
                    raise ParameterError(f"{self.full_name} has no parameter {name!r}{known}")
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

        Parameters
        ----------
        slice_dim : int
            Axis along which the data are cut, 0 or 1.
        other_dims : (int, int)
            The two dims that remain, in array order.
        dtype : dtype-like
            Input dtype. A NumPy scalar, as in ``np.float32()``, reaches the author as it
            is; everything else as an `numpy.dtype`.
        available_memory : int
            Bytes.
        **kwargs
            Parameters of the method; its defaults are added. ``device`` ("cuda" or "cpu"),
            unless the method itself has a parameter of that name, reaches an estimator
            that names it.

        Returns
        -------
        (int, numpy.dtype)
            Slices that fit, and the dtype of the method's result.

        Raises
        ------
        EstimatorError
            If there is no estimator, it raises, or returns what is not a number of slices.
        """
        told = {}
        if "device" in kwargs and "device" not in self.parameters:
            told["device"] = kwargs.pop("device")
        arguments = (slice_dim, other_dims, _as_seen(dtype), available_memory)
        n_slices, returned = self.ask_estimator(*arguments, kwargs, **told)
        if n_slices < 0:
            raise EstimatorError(
                f"{self._asked(arguments, kwargs, told)} returned {n_slices} slices, a negative "
                "number: it must return 0 where not one fits"
            )
        return n_slices, self._output_dtype(dtype, returned, kwargs)

    def ask_estimator(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: DTypeLike,
        available_memory: int,
        parameters: Mapping[str, Any],
        **told: Any,
    ) -> tuple[int, Any]:
        """Return what the estimator answers: a number, here still negative perhaps, and a dtype.

        For `calc_max_slices`, and for `maxslices.estimators.declared`, which asks about
        amounts of memory that nobody has.
        """
        if self.estimator is None:
            raise EstimatorError(
                f"{self.full_name} has no memory estimator: give calc_max_slices where it is "
                "registered"
            )
        leading = (slice_dim, other_dims, _as_seen(dtype), available_memory)
        merged = self.merged(**parameters)
        answer = self.callbacks["calc_max_slices"].call(self.full_name, leading, merged, **told)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise EstimatorError(
                f"{self._asked(leading, parameters, told)} returned {_typed(answer)}: it must "
                "return (max_slices, output dtype)"
            )
        if not _is_int(answer[0]):
            raise EstimatorError(
                f"{self._asked(leading, parameters, told)} returned {_typed(answer[0])} in place "
                "of a number of slices: it must be an int; divide with //"
            )
        return int(answer[0]), answer[1]

    def output_dtype(
        self, slice_dim: int, other_dims: tuple[int, int], dtype: DTypeLike, /, **kwargs: Any
    ) -> np.dtype[Any]:
        """Return the dtype of the result for an input of `dtype`."""
        returned = None
        if (
            self.declared_dtype is None
            and self.estimator is not None
            and not isinstance(self.estimator, LedgerEstimator)
        ):
            returned = self.ask_estimator(slice_dim, other_dims, dtype, _AMPLE_BYTES, kwargs)[1]
        return self._output_dtype(dtype, returned, kwargs)

    def halo_slices(self, **kwargs: Any) -> tuple[int, int]:
        """Return how many slices (before, after) the method needs around its block."""
        halo = self.halo
        if callable(halo):
            halo = self.callbacks["halo"].call(self.full_name, (), self.merged(**kwargs))
        pair = _halo_pair(halo)
        if pair is None:
            raise EstimatorError(f"{self.full_name}: {_HALO_IS}, not {_typed(halo)}")
        return pair

    def tile_margin(self, **kwargs: Any) -> tuple[int, int] | None:
        """Return the pixels needed on either side of a tile, along both of a slice's dims.

        None where the method needs whole slices.
        """
        halo = self.tile_halo
        if halo is None:
            return None
        if callable(halo):
            halo = self.callbacks["tile_halo"].call(self.full_name, (), self.merged(**kwargs))
        pair = _halo_pair(halo)
        if pair is None:
            raise EstimatorError(f"{self.full_name}: {_TILE_HALO_IS}, not {_typed(halo)}")
        return pair

    def looked_at(self, n_slices: int, /, **kwargs: Any) -> range:
        """Return the slices that the side results depend on, as one range.

        Empty where the method runs on every block.

        Raises
        ------
        ParameterError
            If it names slices that there are not.
        """
        if self.looks_at is None:
            return range(0)
        callback, merged = self.callbacks["looks_at"], self.merged(**kwargs)
        named = callback.call(self.full_name, (n_slices,), merged)
        try:
            indices = sorted(named)
        except TypeError:
            indices = [named]
        if not all(_is_int(each) for each in indices):
            raise EstimatorError(
                f"{callback.describe_call(self.full_name, (n_slices,), merged)} must return "
                f"slice indices, not {_typed(named)}"
            )
        if not indices or indices[0] < 0 or indices[-1] >= n_slices:
            shown = f"slices {indices[0]} to {indices[-1]}" if indices else "no slices"
            raise ParameterError(
                f"{self.name} looks at {shown}, but there are {n_slices} (0 to {n_slices - 1})"
            )
        return range(int(indices[0]), int(indices[-1]) + 1)

    def output_other_dims(
        self, slice_dim: int, other_dims: tuple[int, int], /, **kwargs: Any
    ) -> tuple[int, int]:
        """Return the result's other two dims for an input with `other_dims`."""
        if self.output_dims is None:
            return other_dims
        callback, merged = self.callbacks["output_dims"], self.merged(**kwargs)
        dims = callback.call(self.full_name, (other_dims,), merged, slice_dim=slice_dim)
        if (
            not isinstance(dims, tuple | list)
            or len(dims) != 2
            or not all(_is_int(n) and n > 0 for n in dims)
        ):
            asked = callback.describe_call(
                self.full_name, (other_dims,), merged, slice_dim=slice_dim
            )
            raise EstimatorError(f"{asked} must return two positive ints, not {_typed(dims)}")
        return int(dims[0]), int(dims[1])

    def _output_dtype(
        self, dtype: DTypeLike, returned: Any, kwargs: Mapping[str, Any]
    ) -> np.dtype[Any]:
        source = as_dtype(dtype)
        declared, says = self.declared_dtype, "output_dtype"
        if "output_dtype" in self.callbacks:
            callback = self.callbacks["output_dtype"]
            declared = callback.call(self.full_name, (source,), self.merged(**kwargs))
        if declared is None:
            declared, says = source if returned is None else returned, "calc_max_slices"
        try:
            result = as_dtype(declared)
        except UsageError as error:
            raise EstimatorError(f"{self.full_name}: {says} gives a wrong dtype: {error}") from None
        with suppress(UsageError):
            if returned is not None and as_dtype(returned) != result:
                raise EstimatorError(
                    f"{self.full_name}: output_dtype says {result}, calc_max_slices says "
                    f"{as_dtype(returned)}"
                )
        return result

    def _asked(
        self, leading: tuple[Any, ...], parameters: Mapping[str, Any], told: Mapping[str, Any]
    ) -> str:
        callback = self.callbacks["calc_max_slices"]
        return callback.describe_call(self.full_name, leading, self.merged(**parameters), **told)


def method(
    pattern: Pattern,
    *,
    calc_max_slices: Callable[..., Any] | None = None,
    halo: Halo | Callable[..., Halo] = 0,
    tile_halo: Halo | Callable[..., Halo] | None = None,
    output_dims: Callable[..., tuple[int, int]] | None = None,
    output_dtype: DTypeLike | Callable[..., DTypeLike] | None = None,
    side_results: Iterable[str] = (),
    looks_at: Callable[..., Iterable[int]] | None = None,
    combine: Callable[[list[Any]], Any] | None = None,
    array_module: str | None = None,
    registry: Registry | None = None,
) -> Callable[[F], F]:
    """Register a function as a processing method; the function comes back unchanged.

    Parameters
    ----------
    pattern : {"projection", "sinogram", "all"}
        Which slices of an (angles, detector_y, detector_x) array it works on.
    calc_max_slices : callable, optional
        ``(slice_dim, other_dims, dtype, available_memory, **kwargs) -> (n, output dtype)``,
        or an estimator made by `from_ledger`. It is given the user's parameters over the
        function's defaults; one without ``**kwargs`` is given those that it names.
    halo : int, (int, int) or callable, optional
        Slices (before, after) that it needs around its block; a callable is given the
        parameters.
    tile_halo : int, (int, int) or callable, optional
        That a tile of a slice, with so many pixels around it along the slice's two dims, gives
        the same bits as the whole; a callable is given the parameters. Where a slice does not
        fit, it can then be worked on in tiles. Flats, darks and angles are cut likewise.
    output_dims : callable, optional
        ``(other_dims, **kwargs) -> (int, int)``, where the result has other dims. It may
        name ``slice_dim``.
    output_dtype : dtype-like or callable, optional
        The result's dtype, or ``(dtype, **kwargs) -> dtype``. By default what the
        estimator returns.
    side_results : iterable of str, optional
        The function returns these values (one, or a tuple in this order) and no array:
        the data go on unchanged, and later methods may refer to the values.
    looks_at : callable, optional
        ``(n_slices, **kwargs) -> slice indices``: the only slices that the side results
        depend on; the function is called once, with these.
    combine : callable, optional
        Makes one result of the list of all blocks' results; required for side results
        without `looks_at`.
    array_module : {"torch"}, optional
        The function takes its data, flats and darks as torch tensors on the device, and
        returns one; arrays of other methods become tensors, and back, without a copy.
        torch itself is imported when the method runs.
    registry : Registry, optional
        Where to register; the global registry by default.

    Returns
    -------
    callable
        A decorator.

    Raises
    ------
    RegistrationError
        If the signatures cannot work together; nothing is registered then.

    Examples
    --------
    >>> import numpy as np
    >>> from maxslices import Registry, method
    >>> def estimate(slice_dim, other_dims, dtype, available_memory, **kwargs):
    ...     per_slice = 2 * other_dims[0] * other_dims[1] * dtype.itemsize
    ...     return available_memory // per_slice, dtype
    >>> @method("projection", calc_max_slices=estimate, registry=Registry())
    ... def scale(data, *, strength: float = 1.0):
    ...     return data * strength
    >>> scale.meta.calc_max_slices(0, (10, 20), np.float32(), 14450)
    (9, dtype('float32'))
    """

    def decorate(function: F) -> F:
        from .registry import registry as global_registry

        target = global_registry if registry is None else registry
        meta = describe(
            function,
            data_name="data",
            pattern=pattern,
            calc_max_slices=calc_max_slices,
            halo=halo,
            tile_halo=tile_halo,
            output_dims=output_dims,
            output_dtype=output_dtype,
            side_results=side_results,
            looks_at=looks_at,
            combine=combine,
            array_module=array_module,
        )
        target.add(meta)
        # What cannot take attributes (a builtin) is registered all the same.
        with suppress(AttributeError, TypeError):
            function.meta = meta  # type: ignore[attr-defined]
        return function

    return decorate


def describe(
    function: Callable[..., Any],
    *,
    pattern: str,
    name: str | None = None,
    module: str | None = None,
    data_name: str | None = None,
    calc_max_slices: Callable[..., Any] | None = None,
    halo: Halo | Callable[..., Halo] = 0,
    tile_halo: Halo | Callable[..., Halo] | None = None,
    output_dims: Callable[..., tuple[int, int]] | None = None,
    output_dtype: DTypeLike | Callable[..., DTypeLike] | None = None,
    side_results: Iterable[str] = (),
    looks_at: Callable[..., Iterable[int]] | None = None,
    combine: Callable[[list[Any]], Any] | None = None,
    array_module: str | None = None,
) -> MethodMeta:
    """Check a declaration and make its record; see `method` for the parameters.

    Parameters
    ----------
    function : callable
        The method.
    name, module : str, optional
        How pipelines name it; by default as it was defined.
    data_name : str, optional
        Name that the first parameter must have; by default any, if it has no default.

    Raises
    ------
    RegistrationError
        Naming the method, the callback at fault and what does not match.
    """
    if not callable(function):
        raise RegistrationError(f"{function!r} is not a function, so it cannot be a method")
    name = name_of(function) if name is None else name
    module = getattr(function, "__module__", None) or "" if module is None else module
    label = f"{module}.{name}"
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise RegistrationError(
            f"{function!r}: pipelines cannot call a method {label!r}; register it with "
            "registry.register(function, name=..., module=...)"
        )
    if pattern not in PATTERNS:
        valid = ", ".join(repr(p) for p in PATTERNS)
        raise RegistrationError(f"{label}: pattern {pattern!r} is not one of {valid}")
    accepts_any = _check_signature(label, function, data_name)
    parameters = keyword_parameters(function)

    callbacks = {}

    def declare(what: str, given: Any, *leading: str, told: tuple[str, ...] = ()) -> None:
        callbacks[what] = make_callback(label, what, given, leading, parameters, told, accepts_any)

    if calc_max_slices is not None:
        leading = ("slice_dim", "other_dims", "dtype", "available_memory")
        # A method's own `device` is a parameter like any other, save to a ledger.
        own_device = "device" in parameters and not isinstance(calc_max_slices, LedgerEstimator)
        told = () if own_device else ("device",)
        declare("calc_max_slices", calc_max_slices, *leading, told=told)
    if callable(halo):
        declare("halo", halo)
    elif _halo_pair(halo) is None:
        raise RegistrationError(f"{label}: {_HALO_IS}, not {_typed(halo)}")
    if callable(tile_halo):
        declare("tile_halo", tile_halo)
    elif tile_halo is not None and _halo_pair(tile_halo) is None:
        raise RegistrationError(f"{label}: {_TILE_HALO_IS}, not {_typed(tile_halo)}")
    if output_dims is not None:
        declare("output_dims", output_dims, "other_dims", told=("slice_dim",))
    if callable(output_dtype) and not isinstance(output_dtype, type):
        declare("output_dtype", output_dtype, "dtype")
    elif output_dtype is not None:
        try:
            output_dtype = as_dtype(output_dtype)
        except UsageError as error:
            raise RegistrationError(f"{label}: output_dtype: {error}") from None
    if looks_at is not None:
        declare("looks_at", looks_at, "n_slices")
    if combine is not None and not callable(combine):
        raise RegistrationError(f"{label}: combine is {combine!r}, not a function")
    if array_module not in (None, "torch"):
        raise RegistrationError(
            f"{label}: array_module is 'torch', or left out for NumPy and CuPy, not "
            f"{array_module!r}"
        )
    names = _check_side_results(label, side_results, looks_at, combine)
    if tile_halo is not None and (output_dims is not None or names):
        raise RegistrationError(
            f"{label}: tile_halo is for methods whose result has the dims of their data: leave "
            "it out, or output_dims and side_results"
        )
    return MethodMeta(
        function=function,
        name=name,
        module=module,
        pattern=cast(Pattern, pattern),
        estimator=calc_max_slices,
        halo=halo,
        tile_halo=tile_halo,
        output_dims=output_dims,
        declared_dtype=output_dtype,
        side_results=names,
        looks_at=looks_at,
        combine=combine,
        array_module=array_module,
        parameters=parameters,
        accepts_any=accepts_any,
        callbacks=callbacks,
    )


def _check_signature(label: str, function: Callable[..., Any], data_name: str | None) -> bool:
    """Require that a method can be called with an array and keywords; tell if it takes any."""
    parameters = signature_of(label, function)
    first = parameters[0] if parameters else None
    wanted = "a method takes its array as the first parameter, named 'data'"
    if first is None:
        raise RegistrationError(f"{label}: {wanted}; it has no parameters")
    if data_name is not None and first.name != data_name:
        raise RegistrationError(f"{label}: {wanted}; its first parameter is {first.name!r}")
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD) or (
        first.name != "data" and first.default is not first.empty
    ):
        raise RegistrationError(
            f"{label}: a method takes its array as the first parameter, by position; its first "
            f"is {str(first)!r}"
        )
    for p in parameters[1:]:
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
            raise RegistrationError(
                f"{label}: parameters are given by name, but {p.name!r} is by position only"
            )
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def _check_side_results(
    label: str, side_results: Iterable[str], looks_at: Any, combine: Any
) -> tuple[str, ...]:
    if isinstance(side_results, str):
        raise RegistrationError(
            f"{label}: side_results are several names: write [{side_results!r}]"
        )
    names = tuple(side_results)
    if names and looks_at is None and combine is None:
        raise RegistrationError(
            f"{label}: side results of every block need `combine`, those of a few slices `looks_at`"
        )
    if not names and (looks_at is not None or combine is not None):
        raise RegistrationError(f"{label}: `looks_at` and `combine` go with `side_results`")
    return names


_HALO_IS = "halo must be a number of slices of at least 0, or two: (before, after)"

_TILE_HALO_IS = "tile_halo must be a number of pixels of at least 0, or two"


def _halo_pair(halo: Any) -> tuple[int, int] | None:
    pair = halo if isinstance(halo, tuple | list) else (halo, halo)
    if len(pair) != 2 or not all(_is_int(n) and n >= 0 for n in pair):
        return None
    return int(pair[0]), int(pair[1])


def _as_seen(dtype: DTypeLike) -> Any:
    """Return a dtype as authors receive it: a NumPy scalar as it is, all else as an `np.dtype`."""
    return dtype if isinstance(dtype, np.generic) else as_dtype(dtype)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _typed(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"
