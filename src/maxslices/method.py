"""A processing method and what it needs to be planned.

The decorator `method` returns the function unchanged, with a frozen `MethodMeta` as its
attribute ``meta``. That record is what planner, runner and test harness read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from .errors import EstimatorError, ParameterError, RegistrationError
from .ledger import LedgerEstimator
from .parameters import SUPPLIED, accepted_keywords, keyword_parameters

if TYPE_CHECKING:
    from .registry import Registry

Pattern = Literal["projection", "sinogram", "all"]
PATTERNS: dict[str, tuple[int, ...]] = {"projection": (0,), "sinogram": (1,), "all": (0, 1)}
"""Patterns, and the slice dims along which a method of each may be cut."""

Halo = int | tuple[int, int]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
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
    """Dtype of the result, or a function ``(dtype, **kwargs)``; None: what the estimator returns."""
    side_results: tuple[str, ...] = ()
    """Names of what it returns in place of an array; the data then pass through unchanged."""
    looks_at: Callable[..., Iterable[int]] | None = None
    """``looks_at(n_slices, **kwargs)``: the only slices that the side results depend on."""
    combine: Callable[[list[Any]], Any] | None = None
    """Makes one side result of those of all blocks, where every slice is looked at."""
    parameters: Mapping[str, inspect.Parameter] = field(default_factory=dict)
    """The function's parameters after the data, those the runner supplies included."""

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
        """Return the user's parameters over the function's own defaults."""
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
            Parameters of the method; its defaults are added. ``device`` ("cuda" or "cpu")
            reaches an estimator that names it.

        Returns
        -------
        (int, numpy.dtype)
            Slices that fit, and the dtype of the method's result.

        Raises
        ------
        EstimatorError
            If there is no estimator, it raises, or returns what is not a number of slices.
        """
        n_slices, returned = self._ask(slice_dim, other_dims, dtype, available_memory, kwargs)
        return n_slices, self._output_dtype(dtype, returned, kwargs)

    def output_dtype(
        self, slice_dim: int, other_dims: tuple[int, int], dtype: DTypeLike, **kwargs: Any
    ) -> np.dtype[Any]:
        """Return the dtype of the result for an input of `dtype`."""
        if self.declared_dtype is not None or self.estimator is None:
            return self._output_dtype(dtype, None, kwargs)
        if isinstance(self.estimator, LedgerEstimator):
            return _as_dtype(dtype)
        return self.calc_max_slices(slice_dim, other_dims, dtype, 2**62, **kwargs)[1]

    def halo_slices(self, **kwargs: Any) -> tuple[int, int]:
        """Return how many slices (before, after) the method needs around its block."""
        halo = self.halo
        if callable(halo):
            halo = cast(Halo, self._call("halo", halo, (), kwargs))
        pair = (halo, halo) if isinstance(halo, int | np.integer) else tuple(halo)
        if len(pair) != 2 or not all(_is_count(n) for n in pair):
            raise EstimatorError(
                f"{self.full_name}: halo must be a number of slices or (before, after), not {halo!r}"
            )
        return int(pair[0]), int(pair[1])

    def looked_at(self, n_slices: int, **kwargs: Any) -> range:
        """Return the slices that the side results depend on, as one range.

        Empty where the method runs on every block.

        Raises
        ------
        ParameterError
            If it names slices that there are not.
        """
        if self.looks_at is None:
            return range(0)
        named = self._call("looks_at", self.looks_at, (n_slices,), kwargs)
        indices = sorted(int(index) for index in named)
        if not indices or indices[0] < 0 or indices[-1] >= n_slices:
            shown = f"slices {indices[0]} to {indices[-1]}" if indices else "no slices"
            raise ParameterError(
                f"{self.name} looks at {shown}, but there are {n_slices} (0 to {n_slices - 1})"
            )
        return range(indices[0], indices[-1] + 1)

    def output_other_dims(
        self, slice_dim: int, other_dims: tuple[int, int], **kwargs: Any
    ) -> tuple[int, int]:
        """Return the result's other two dims for an input with `other_dims`."""
        if self.output_dims is None:
            return other_dims
        dims = self._call(
            "output_dims", self.output_dims, (other_dims,), {**kwargs, "slice_dim": slice_dim}
        )
        if not isinstance(dims, tuple | list) or len(dims) != 2 or not all(
            _is_count(n) and n > 0 for n in dims
        ):
            raise EstimatorError(
                f"{self.full_name}: output_dims must return two positive ints, not {dims!r}"
            )
        return int(dims[0]), int(dims[1])

    def _ask(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: DTypeLike,
        available_memory: int,
        kwargs: Mapping[str, Any],
    ) -> tuple[int, Any]:
        if self.estimator is None:
            raise EstimatorError(
                f"{self.full_name} has no memory estimator: give calc_max_slices where it is "
                "registered"
            )
        seen = dtype if isinstance(dtype, np.generic) else np.dtype(dtype)
        arguments = (slice_dim, other_dims, seen, available_memory)
        answer = self._call("calc_max_slices", self.estimator, arguments, kwargs)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise EstimatorError(
                f"{self._asked(arguments, kwargs)} returned {answer!r}: it must return "
                "(max_slices, output dtype)"
            )
        n_slices, returned = answer
        if not _is_count(n_slices):
            what = "a negative number" if _is_negative(n_slices) else type(n_slices).__name__
            raise EstimatorError(
                f"{self._asked(arguments, kwargs)} returned {n_slices!r} slices ({what}): it must "
                "be an int of at least 0; use // to divide"
            )
        return int(n_slices), returned

    def _output_dtype(
        self, dtype: DTypeLike, returned: Any, kwargs: Mapping[str, Any]
    ) -> np.dtype[Any]:
        source = _as_dtype(dtype)
        declared = self.declared_dtype
        if callable(declared) and not isinstance(declared, type):
            declared = self._call("output_dtype", declared, (source,), kwargs)
        chosen = declared if declared is not None else returned
        try:
            result = source if chosen is None else _as_dtype(chosen)
            other = result if returned is None else _as_dtype(returned)
        except TypeError:
            raise EstimatorError(
                f"{self.full_name}: the output dtype {chosen!r} is not a dtype"
            ) from None
        if other != result:
            raise EstimatorError(
                f"{self.full_name}: output_dtype says {result}, calc_max_slices says {other}"
            )
        return result

    def _call(
        self, what: str, callback: Callable[..., Any], arguments: tuple[Any, ...], kwargs: Any
    ) -> Any:
        taken = list(inspect.signature(callback).parameters)[: len(arguments)]
        given = accepted_keywords(callback, self.merged(**kwargs))
        given = {name: value for name, value in given.items() if name not in taken}
        try:
            return callback(*arguments, **given)
        except Exception as error:
            hint = ""
            if isinstance(error, AttributeError) and "nbytes" in str(error):
                hint = "; a numpy.dtype has itemsize, not nbytes"
            raise EstimatorError(
                f"{self._asked(arguments, given, what)} raised {type(error).__name__}: {error}{hint}"
            ) from error

    def _asked(
        self, arguments: tuple[Any, ...], kwargs: Mapping[str, Any], what: str = "calc_max_slices"
    ) -> str:
        given = [repr(a) for a in arguments]
        given += [f"{k}={_short(v)}" for k, v in kwargs.items() if v is not inspect.Parameter.empty]
        return f"{self.full_name}: {what}({', '.join(given)})"


def method(
    pattern: Pattern,
    *,
    calc_max_slices: Callable[..., Any] | None = None,
    halo: Halo | Callable[..., Halo] = 0,
    output_dims: Callable[..., tuple[int, int]] | None = None,
    output_dtype: DTypeLike | Callable[..., DTypeLike] | None = None,
    side_results: Iterable[str] = (),
    looks_at: Callable[..., Iterable[int]] | None = None,
    combine: Callable[[list[Any]], Any] | None = None,
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
        meta = target.register(
            function,
            pattern=pattern,
            calc_max_slices=calc_max_slices,
            halo=halo,
            output_dims=output_dims,
            output_dtype=output_dtype,
            side_results=side_results,
            looks_at=looks_at,
            combine=combine,
        )
        function.meta = meta  # type: ignore[attr-defined]
        return function

    return decorate


def describe(
    function: Callable[..., Any],
    *,
    pattern: str,
    name: str | None = None,
    module: str | None = None,
    calc_max_slices: Callable[..., Any] | None = None,
    halo: Halo | Callable[..., Halo] = 0,
    output_dims: Callable[..., tuple[int, int]] | None = None,
    output_dtype: DTypeLike | Callable[..., DTypeLike] | None = None,
    side_results: Iterable[str] = (),
    looks_at: Callable[..., Iterable[int]] | None = None,
    combine: Callable[[list[Any]], Any] | None = None,
) -> MethodMeta:
    """Check a declaration and make its record; see `method` for the parameters.

    Raises
    ------
    RegistrationError
        Naming the method, the callback at fault and what does not match.
    """
    name = name or getattr(function, "__name__", "")
    module = module or getattr(function, "__module__", "")
    label = f"{module}.{name}"
    if pattern not in PATTERNS:
        valid = ", ".join(repr(p) for p in PATTERNS)
        raise RegistrationError(f"{label}: pattern {pattern!r} is not one of {valid}")
    if not callable(function):
        raise RegistrationError(f"{label}: {function!r} is not a function")
    try:
        positional = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise RegistrationError(f"{label}: its signature cannot be read") from None
    if not positional or positional[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ) or positional[0].name != "data":
        first = f"its first parameter is {positional[0].name!r}" if positional else "it has none"
        raise RegistrationError(
            f"{label}: a method takes its array as the first parameter, named 'data'; {first}"
        )
    parameters = keyword_parameters(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in positional)
    callbacks = {
        "calc_max_slices": (calc_max_slices, ("slice_dim", "other_dims", "dtype", "available_memory")),
        "halo": (halo if callable(halo) else None, ()),
        "output_dims": (output_dims, ("other_dims",)),
        "output_dtype": (
            output_dtype
            if callable(output_dtype) and not isinstance(output_dtype, type)
            else None,
            ("dtype",),
        ),
        "looks_at": (looks_at, ("n_slices",)),
    }
    known = set(parameters) | {"device", "slice_dim"}
    for what, (callback, leading) in callbacks.items():
        if callback is not None:
            _check_callback(label, what, callback, leading, known, takes_any)
    if side_results and looks_at is None and combine is None:
        raise RegistrationError(
            f"{label}: side results of every block need `combine`, those of a few slices `looks_at`"
        )
    return MethodMeta(
        function=function,
        name=name,
        module=module,
        pattern=cast(Pattern, pattern),
        estimator=calc_max_slices,
        halo=halo,
        output_dims=output_dims,
        declared_dtype=output_dtype,
        side_results=tuple(side_results),
        looks_at=looks_at,
        combine=combine,
        parameters=parameters,
    )


def _check_callback(
    label: str,
    what: str,
    callback: Callable[..., Any],
    leading: tuple[str, ...],
    known: set[str],
    takes_any: bool,
) -> None:
    """Require that a callback takes its leading arguments and names only known parameters."""
    if not callable(callback):
        raise RegistrationError(f"{label}: {what} is {callback!r}, not a function")
    if isinstance(callback, LedgerEstimator):
        names, n_leading = list(inspect.signature(callback.function).parameters.values()), 3
        leading = ("m", "shape", "dtype")
    else:
        names, n_leading = list(inspect.signature(callback).parameters.values()), len(leading)
    shown = f"{what} {getattr(callback, '__name__', callback)!s}"
    head = [p for p in names if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(head) < n_leading and not any(p.kind is p.VAR_POSITIONAL for p in names):
        raise RegistrationError(f"{label}: {shown} must take ({', '.join(leading)}, **kwargs)")
    for p in names:
        if p in head[:n_leading] or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        if p.name not in known and not takes_any:
            raise RegistrationError(
                f"{label}: {shown} names a parameter {p.name!r} that the method does not have "
                f"(it has: {', '.join(sorted(known - {'device', 'slice_dim'})) or 'none'})"
            )


def _as_dtype(dtype: Any) -> np.dtype[Any]:
    return np.dtype(type(dtype)) if isinstance(dtype, np.generic) else np.dtype(dtype)


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 0


def _is_negative(value: Any) -> bool:
    return isinstance(value, int | np.integer) and value < 0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
