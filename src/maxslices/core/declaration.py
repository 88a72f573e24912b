"""Check the declaration of a method, make its record, and compare its output with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from ..errors import RegistrationError, UsageError
from .arrays import NUMBER_KINDS, ArraySpec, as_dtype
from .author_code import Callback, make_callback, name_of, signature_of
from .ledger import LedgerEstimator
from .method_meta import (
    HALO_IS,
    PATTERNS,
    QUANTITIES,
    Declaration,
    MethodMeta,
    halo_pair,
    with_type,
)
from .parameters import keyword_parameters, nearest


def describe(
    function: Callable[..., Any],
    data_name: str | None = None,
    **options: Unpack[Declaration],
) -> MethodMeta:
    """Check a declaration and make its record.

    Parameters
    ----------
    function : callable
        The method.
    data_name : str, optional
        Name that the first parameter must have. By default any name, without a default value.
    **options
        As for `Registry.register`.

    Raises
    ------
    RegistrationError
        If the declaration is invalid, naming the method and the option.
    """
    if isinstance(function, staticmethod | classmethod):
        raise RegistrationError(
            f"{name_of(function.__func__)}: the first argument of a method must be its data, also "
            "in a class: write @staticmethod above @method"
        )
    if not callable(function):
        raise RegistrationError(f"{function!r} is not a function, so it cannot be a method")
    name, module = options.get("name"), options.get("module")
    name = name_of(function) if name is None else name
    if module is None:  # ufuncs of NumPy 1 have no module of their own
        module = getattr(function, "__module__", None) or type(function).__module__
    label = f"{module}.{name}"
    if not isinstance(name, str):
        raise RegistrationError(f"the name of a method must be text, not {name!r}")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise RegistrationError(
            f"{function!r}: pipelines cannot name a method {label!r}: register it with "
            "registry.register(function, name=..., module=...)"
        )
    if unknown := [each for each in options if each not in Declaration.__annotations__]:
        hint = nearest(unknown[0], Declaration.__annotations__)
        raise RegistrationError(f"{label}: methods have no option {unknown[0]!r}{hint}")
    pattern = options.get("pattern")
    if pattern not in PATTERNS:
        valid = ", ".join(repr(p) for p in PATTERNS)
        raise RegistrationError(f"{label}: pattern {pattern!r} is not one of {valid}")
    accepts_any = _check_signature(label, function, data_name)
    parameters = keyword_parameters(function)

    callbacks: dict[str, Callback] = {}
    for what, (leading, context_args) in _CALLBACKS.items():
        value = options.get(what)
        if value is None or (what in _VALUES and not _is_callback(value)):
            continue
        if what == "calc_max_slices" and "device" in parameters:
            # The method's own parameter `device` is an ordinary one, except for a ledger.
            context_args = context_args if isinstance(value, LedgerEstimator) else ()
        callbacks[what] = make_callback(
            label, what, value, leading, parameters, context_args, accepts_any
        )
    side_results = _check_side_results(label, options)
    declared: dict[str, Any] = {**options, **_checked_values(label, options, callbacks)}
    for only_checked in ("calc_max_slices", "output_dtype"):
        declared.pop(only_checked, None)
    declared |= {"name": name, "module": module, "side_results": side_results}
    return MethodMeta(
        function=function,
        estimator=options.get("calc_max_slices"),
        parameters=parameters,
        accepts_any=accepts_any,
        callbacks=callbacks,
        **declared,
    )


_CALLBACKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "calc_max_slices": (("slice_dim", "other_dims", "dtype", "available_memory"), ("device",)),
    "halo": ((), ()),
    "row_reach": ((), ()),
    "output_dims": (("other_dims",), ("slice_dim",)),
    "output_angles": (("angles",), ()),
    "check_values": ((), ()),
    "output_dtype": (("dtype",), ()),
    "sample_slices": (("n_slices",), ()),
}
"""Options that are functions of the method's parameters. Each has positional arguments and context
arguments."""
_VALUES = (*HALO_IS, "output_dtype")
"""Options that may be a value instead."""


def _is_callback(value: Any) -> bool:
    """True for a function. Dtypes such as `numpy.float32` are callable too, but are types."""
    return callable(value) and not isinstance(value, type)


def _checked_values(
    label: str, options: Mapping[str, Any], callbacks: Mapping[str, Callback]
) -> dict[str, Any]:
    """Check the options that are values, and convert them for `MethodMeta`."""
    checked: dict[str, Any] = {"former_names": dict(options.get("former_names") or {})}
    for what, valid in HALO_IS.items():
        pair = options.get(what)
        if what in options and what not in callbacks and (pair is not None or what == "halo"):
            if halo_pair(pair) is None:
                raise RegistrationError(f"{label}: {valid}, not {with_type(pair)}")
            # A copy, because the author may change the list later.
            checked[what] = tuple(pair) if isinstance(pair, list) else pair
    if (side_data := options.get("side_data")) not in (None, "too", "alone"):
        raise RegistrationError(
            f"{label}: side_data must be 'too' or 'alone', not {side_data!r}: leave it out if the "
            "method does not change flats and darks"
        )
    checked["declared_dtype"] = dtype = options.get("output_dtype")
    if dtype is not None and "output_dtype" not in callbacks:
        try:
            checked["declared_dtype"] = as_dtype(dtype)
        except UsageError as error:
            raise RegistrationError(f"{label}: output_dtype: {error}") from None
    if (combine := options.get("combine")) is not None and not callable(combine):
        raise RegistrationError(f"{label}: combine is {combine!r}, not a function")
    if (array_module := options.get("array_module")) not in (None, "torch"):
        raise RegistrationError(
            f"{label}: array_module must be 'torch', not {array_module!r}: leave it out for NumPy "
            "and CuPy"
        )
    takes, gives = options.get("takes", ()), options.get("gives")
    checked["takes"] = (takes,) if isinstance(takes, str) else tuple(takes)
    named = [*checked["takes"], *([] if gives in (None, "same") else [gives])]
    if wrong := [each for each in named if each not in QUANTITIES]:
        raise RegistrationError(
            f"{label}: {wrong[0]!r} is not a quantity: use {', '.join(map(repr, QUANTITIES))}, or "
            "'same' for gives"
        )
    if (records := options.get("records")) is not None:
        checked["records"] = shipped = Path(records).absolute()
        if not shipped.is_file():
            raise RegistrationError(f"{label}: records: the file {shipped} does not exist")
    return checked


def _check_signature(label: str, function: Callable[..., Any], data_name: str | None) -> bool:
    """Check that a method can be called with an array and keywords; True if it has ``**kwargs``."""
    parameters = signature_of(label, function)
    first = parameters[0] if parameters else None
    named = "" if data_name is None else f", named {data_name!r}"
    wanted = f"a method takes its array as the first parameter{named}"
    if first is None:
        raise RegistrationError(f"{label}: {wanted}; it has no parameters")
    if data_name is not None and first.name != data_name:
        raise RegistrationError(f"{label}: {wanted}; its first parameter is {first.name!r}")
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD) or (
        first.name != "data" and first.default is not first.empty
    ):
        raise RegistrationError(
            f"{label}: a method takes its array as the first parameter, by position, not "
            f"{str(first)!r}"
        )
    for p in parameters[1:]:
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
            raise RegistrationError(
                f"{label}: parameters are passed by name, but {p.name!r} is by position only"
            )
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def _check_side_results(label: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Check the names of side results, and that their source is declared."""
    side_results = options.get("side_results", ())
    has_sample = options.get("sample_slices") is not None
    has_combine = options.get("combine") is not None
    if isinstance(side_results, str):
        raise RegistrationError(
            f"{label}: side_results must be a list of names: write [{side_results!r}]"
        )
    names = tuple(side_results) if isinstance(side_results, Iterable) else (side_results,)
    if wrong := [name for name in names if not isinstance(name, str) or not name.isidentifier()]:
        raise RegistrationError(
            f"{label}: side_results must be names, such as 'center', not {wrong[0]!r}"
        )
    if names and not has_sample and not has_combine:
        raise RegistrationError(
            f"{label}: side results need `combine` if they are from every block, or "
            "`sample_slices` if they are from a few slices"
        )
    if not names and (has_sample or has_combine):
        raise RegistrationError(f"{label}: `sample_slices` and `combine` need `side_results`")
    return names


@dataclass(frozen=True, slots=True)
class ReturnedOutput:
    """Shape and dtype of a method's output, without its memory."""

    shape: tuple[int, ...] | None
    """Its shape; None if it is not an array."""
    dtype: Any
    """Its dtype; None if it is not an array."""
    type_name: str
    """Class of the object."""

    @classmethod
    def of(cls, output: Any) -> ReturnedOutput:
        """Describe what a method returned."""
        shape, dtype = getattr(output, "shape", None), getattr(output, "dtype", None)
        return cls(None if shape is None else tuple(shape), dtype, type(output).__name__)

    def __str__(self) -> str:
        if not self.shape:
            return "nothing" if self.type_name == "NoneType" else f"a {self.type_name}"
        return f"{'x'.join(map(str, self.shape))} {self.dtype}"

    @property
    def why_not_data(self) -> str:
        """Reason why this cannot be data of any number of slices, or an empty string."""
        if self.type_name == "MaskedArray":
            return "returned a MaskedArray, whose mask would be lost: return its .filled() array"
        if not self.shape or len(self.shape) != 3:
            return f"returned {self}: it must return an array with three axes"
        if getattr(self.dtype, "kind", "none") not in NUMBER_KINDS:
            return f"returned {self}: it must return an array of numbers"
        return ""

    def why_not_block(self, n_slices: int, slice_dim: int) -> str:
        """Reason why this cannot be the result for a number of slices, or an empty string."""
        if self.why_not_data or not self.shape:
            return self.why_not_data
        if self.shape[slice_dim] != n_slices:
            return (
                f"returned {self} with {self.shape[slice_dim]} slices along axis {slice_dim}: it "
                f"must return {n_slices}, as many as its input has"
            )
        return ""

    def mismatch(self, meta: MethodMeta, expected: ArraySpec, slice_dim: int) -> str:
        """Difference from the declaration and how to correct it, or an empty string.

        Parameters
        ----------
        meta : MethodMeta
            The method.
        expected : ArraySpec
            Its output by its declarations.
        slice_dim : int
            Axis of the slices, whose number must not change.
        """
        if text := self.why_not_block(expected.shape[slice_dim], slice_dim):
            return f"{text}, such as {expected}" if text.endswith("axes") else text
        right_dims, right_dtype = self.shape == expected.shape, self.dtype == expected.dtype
        if right_dims and right_dtype:
            return ""
        source, cures = "by its declaration", []
        if not right_dims:
            cures.append("its output_dims")
        if not right_dtype:
            cures.append("its output_dtype")
            if meta.estimator_gives_dtype:
                source = "by its estimator"
                cures[-1] = f"the dtype that {meta.callbacks['calc_max_slices'].name} returns"
        cure = f"correct {' and '.join(cures)}"
        if meta.estimator is None:
            source = "as declared or measured"
            cure += f", or remove its record: maxslices records clear {meta.name}"
        return f"returned {self}; {source} it is {expected}: {cure}"
