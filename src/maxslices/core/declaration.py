"""Checks an author's declaration of a method, and makes the method's record of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from numpy.typing import DTypeLike

from ..errors import RegistrationError, UsageError
from .arrays import as_dtype
from .callback import make_callback, name_of, signature_of
from .ledger import LedgerEstimator
from .method_meta import HALO_IS, PATTERNS, Halo, MethodMeta, Pattern, halo_pair, with_type
from .parameters import keyword_parameters


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
    output_angles: Callable[..., Any] | None = None,
    side_data: Literal["too", "alone"] | None = None,
    check_values: Callable[..., None] | None = None,
    side_results: Iterable[str] = (),
    sample_slices: Callable[..., Iterable[int]] | None = None,
    combine: Callable[[list[Any]], Any] | None = None,
    array_module: str | None = None,
    records: str | os.PathLike[str] | None = None,
    row_reach: Halo | Callable[..., Halo] | None = None,
    saved_by_default: bool = False,
    keeps_pixel_size: bool = False,
    host_only: bool = False,
    former_names: Mapping[str, str] | None = None,
) -> MethodMeta:
    """Check a declaration and make its record; see the decorator `method` for the parameters.

    Parameters
    ----------
    function : callable
        The method.
    former_names : mapping, optional
        Names that parameters had in earlier releases -> those they have: pipelines may give either.
    name, module : str, optional
        How pipelines name it; by default as it was defined.
    data_name : str, optional
        Name that the first parameter must have; by default any, if it has no default.

    Raises
    ------
    RegistrationError
        Naming the method, the callback at fault and what does not match.
    """
    if isinstance(function, staticmethod | classmethod):
        raise RegistrationError(
            f"{name_of(function.__func__)}: a method of a class is a function of its data alone: "
            "write @staticmethod above @method"
        )
    if not callable(function):
        raise RegistrationError(f"{function!r} is not a function, so it cannot be a method")
    name = name_of(function) if name is None else name
    module = getattr(function, "__module__", None) or "" if module is None else module
    label = f"{module}.{name}"
    if not isinstance(name, str):
        raise RegistrationError(f"the name of a method is text, not {name!r}")
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
    halos: dict[str, Any] = {"halo": halo, "tile_halo": tile_halo, "row_reach": row_reach}
    for what, pair in halos.items():
        if pair is None and what != "halo":
            continue
        if callable(pair):
            declare(what, pair)
        elif halo_pair(pair) is None:
            raise RegistrationError(f"{label}: {HALO_IS[what]}, not {with_type(pair)}")
        elif isinstance(pair, list):
            halos[what] = tuple(pair)  # the list is the author's, who may change it
    if output_dims is not None:
        declare("output_dims", output_dims, "other_dims", told=("slice_dim",))
    if output_angles is not None:
        declare("output_angles", output_angles, "angles")
    if check_values is not None:
        declare("check_values", check_values)
    if side_data not in (None, "too", "alone"):
        raise RegistrationError(
            f"{label}: side_data is 'too' or 'alone', or left out for methods that leave flats and "
            f"darks as they are, not {side_data!r}"
        )
    if callable(output_dtype) and not isinstance(output_dtype, type):
        declare("output_dtype", output_dtype, "dtype")
    elif output_dtype is not None:
        try:
            output_dtype = as_dtype(output_dtype)
        except UsageError as error:
            raise RegistrationError(f"{label}: output_dtype: {error}") from None
    if sample_slices is not None:
        declare("sample_slices", sample_slices, "n_slices")
    if combine is not None and not callable(combine):
        raise RegistrationError(f"{label}: combine is {combine!r}, not a function")
    if array_module not in (None, "torch"):
        raise RegistrationError(
            f"{label}: array_module is 'torch', or left out for NumPy and CuPy, not "
            f"{array_module!r}"
        )
    shipped = None if records is None else Path(records).absolute()
    if shipped is not None and not shipped.is_file():
        raise RegistrationError(f"{label}: records: there is no file {shipped}")
    names = _check_side_results(label, side_results, sample_slices, combine)
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
        **halos,
        saved_by_default=saved_by_default,
        keeps_pixel_size=keeps_pixel_size,
        host_only=host_only,
        former_names=dict(former_names or {}),
        output_dims=output_dims,
        declared_dtype=output_dtype,
        output_angles=output_angles,
        side_data=side_data,
        check_values=check_values,
        side_results=names,
        sample_slices=sample_slices,
        combine=combine,
        array_module=array_module,
        records=shipped,
        parameters=parameters,
        accepts_any=accepts_any,
        callbacks=callbacks,
    )


def _check_signature(label: str, function: Callable[..., Any], data_name: str | None) -> bool:
    """Require that a method can be called with an array and keywords; true if it takes any."""
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
    label: str, side_results: Iterable[str], sample_slices: Any, combine: Any
) -> tuple[str, ...]:
    if isinstance(side_results, str):
        raise RegistrationError(
            f"{label}: side_results are several names: write [{side_results!r}]"
        )
    names = tuple(side_results) if isinstance(side_results, Iterable) else (side_results,)
    if wrong := [name for name in names if not isinstance(name, str) or not name.isidentifier()]:
        raise RegistrationError(
            f"{label}: side_results are names, such as 'center', not {wrong[0]!r}"
        )
    if names and sample_slices is None and combine is None:
        raise RegistrationError(
            f"{label}: side results of every block need `combine`, "
            "those of a few slices `sample_slices`"
        )
    if not names and (sample_slices is not None or combine is not None):
        raise RegistrationError(f"{label}: `sample_slices` and `combine` go with `side_results`")
    return names
