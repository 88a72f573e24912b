"""A function that a method's author declares beside it: checked once, called safely.

Estimators, halos, output dims and dtypes may all be functions of the parameters. What
each can be given is read from its signature when the method is registered, so that a
function that could never be called is refused there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import EstimatorError, RegistrationError, UnknownReferenceError
from .author_lines import defined_at, raised_at, what_raised
from .ledger import LedgerEstimator
from .parameters import nearest
from .unknown_value import require_known


@dataclass(frozen=True, slots=True, eq=False)
class Callback:
    """A declared function with the arguments that it takes."""

    owner: str
    """Full name of the method, for messages."""
    what: str
    """Keyword of the decorator, such as "calc_max_slices"."""
    function: Callable[..., Any]
    """The function itself."""
    keywords: frozenset[str]
    """Parameters of the method that it names, beside the leading ones given by position."""
    told: frozenset[str]
    """Names that it takes for facts, such as ``device``, whatever the method's parameters are."""
    hidden: frozenset[str]
    """Names of leading arguments and facts: no parameter is passed on under these."""
    accepts_all: bool
    """True if it takes ``**kwargs``."""

    @property
    def name(self) -> str:
        """Name for messages, such as "calc_max_slices my_estimator"."""
        name = name_of(self.function)
        return f"{self.what} {name}" if name and name != self.what else self.what

    def arguments(self, parameters: Mapping[str, Any], **told: Any) -> dict[str, Any]:
        """Those parameters and facts that it takes by name; facts take precedence.

        Parameters
        ----------
        parameters : mapping
            The method's parameters: those that it names, or all with ``**kwargs``.
        **told
            Facts, passed only under names that it has.
        """
        given = {
            name: value
            for name, value in parameters.items()
            if name in self.keywords or (self.accepts_all and name not in self.hidden)
        }
        return given | {name: value for name, value in told.items() if name in self.told}

    def call(self, leading: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        """Call it with arguments by position, and those of `arguments`.

        A function that reads ``nbytes`` of a `numpy.dtype` is called again with a NumPy scalar.

        Raises
        ------
        EstimatorError
            If it raises.
        """
        with self.errors_named(leading, given):
            try:
                answer = self.function(*leading, **given)
            except AttributeError as error:
                if not _is_nbytes_of_dtype(error, leading):
                    raise
                answer = self.function(*map(_as_scalar, leading), **given)
            require_known(answer)
        return answer

    @contextmanager
    def errors_named(self, leading: tuple[Any, ...], given: Mapping[str, Any]) -> Iterator[None]:
        """Turn what the author's code raises into an `EstimatorError` that names the call."""
        try:
            yield
        except (KeyboardInterrupt, UnknownReferenceError):
            raise
        except BaseException as error:
            said = f"raised {what_raised(error)}{raised_at(error, self.function)}"
            raise EstimatorError(f"{self._call_text(leading, given)} {said}") from error

    def describe_call(self, leading: tuple[Any, ...], given: Mapping[str, Any]) -> str:
        """Write a call with these arguments, for a message about its answer."""
        return f"{self._call_text(leading, given)}{defined_at(self.function)}"

    def _call_text(self, leading: tuple[Any, ...], given: Mapping[str, Any]) -> str:
        arguments = [_short(value) for value in leading]
        arguments += [f"{name}={_short(value)}" for name, value in given.items()]
        return f"{self.owner}: {self.name}({', '.join(arguments)})"


def make_callback(
    owner: str,
    what: str,
    function: Any,
    leading: tuple[str, ...],
    parameters: Mapping[str, inspect.Parameter],
    told: tuple[str, ...] = (),
    accepts_any: bool = False,
) -> Callback:
    """Check that a declared function can be called with what it will be given.

    Parameters
    ----------
    owner : str
        Full name of the method.
    what : str
        Keyword of the decorator.
    function : object
        Value that the author gave.
    leading : tuple of str
        Names of the arguments given by position.
    parameters : mapping
        The method's parameters.
    told : tuple of str
        Names beyond the method's parameters that it may ask for.
    accepts_any : bool
        True if the method takes ``**kwargs``, so that any name may be a parameter.

    Raises
    ------
    RegistrationError
        Naming the method, the function and what does not match.
    """
    if not callable(function):
        raise RegistrationError(f"{owner}: {what} is {function!r}, not a function")
    label = f"{owner}: {what} {name_of(function) or repr(function)}"
    if isinstance(function, LedgerEstimator):
        # The function that the author wrote is checked; the estimator made of it is called.
        if "device" in function.keywords:
            raise RegistrationError(
                f"{label} names 'device': a ledger's is m.device, and it is given no parameter of "
                "this name"
            )
        _check(
            label,
            function.function,
            ("m", "shape", "dtype"),
            parameters,
            ("slice_dim",),
            accepts_any,
        )
    else:
        _check(label, function, leading, parameters, told, accepts_any)
    positional, others = _split(label, function, len(leading))
    named = {p.name for p in others if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    taken = {p.name for p in positional if p.kind is p.POSITIONAL_OR_KEYWORD}
    return Callback(
        owner=owner,
        what=what,
        function=function,
        keywords=frozenset(named.difference(told)),
        told=frozenset(named.intersection(told)),
        hidden=frozenset(taken | named.intersection(told)),
        accepts_all=any(p.kind is p.VAR_KEYWORD for p in others),
    )


def name_of(function: Any) -> str:
    """Name of a function; empty if it has none."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else ""


def signature_of(label: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Read the parameters of a function.

    Raises
    ------
    RegistrationError
        If Python cannot tell, or it returns a coroutine or generator in place of a result.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RegistrationError(
            f"{label}: Python cannot read its signature ({error}); wrap it in a function that has "
            "one"
        ) from None
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise RegistrationError(
                f"{label} is async: it must return its result when it is called"
            )
        if inspect.isgeneratorfunction(each):
            raise RegistrationError(f"{label} is a generator: it must return its result, not yield")
    return parameters


def _split(
    label: str, function: Callable[..., Any], n_leading: int
) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Split the parameters into those that leading arguments go to, and the others."""
    parameters = signature_of(label, function)
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    leading = by_position[:n_leading]
    return leading, [p for p in parameters if p not in leading]


def _check(
    label: str,
    function: Callable[..., Any],
    leading: tuple[str, ...],
    parameters: Mapping[str, inspect.Parameter],
    told: tuple[str, ...],
    accepts_any: bool,
) -> None:
    positional, others = _split(label, function, len(leading))
    wanted = f"it must take ({', '.join((*leading, '**kwargs'))})"
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in others)
    if len(positional) < len(leading) and not takes_more:
        raise RegistrationError(f"{label} takes {len(positional)} arguments by position: {wanted}")
    for place, p in enumerate(positional):
        if p.name in leading and p.name != leading[place]:
            raise RegistrationError(
                f"{label} takes {p.name!r} in the place of {leading[place]!r}: {wanted}"
            )
    for p in others:
        required = p.default is p.empty
        if p.kind is p.POSITIONAL_ONLY and required:
            raise RegistrationError(f"{label} takes {p.name!r} by position only: {wanted}")
        if p.kind not in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD):
            continue
        if p.name not in parameters and p.name not in told and not accepts_any:
            known = ", ".join(sorted(parameters)) or "none"
            raise RegistrationError(
                f"{label} names a parameter {p.name!r} that the method does not have "
                f"(it has: {known}){nearest(p.name, parameters)}"
            )


def _is_nbytes_of_dtype(error: AttributeError, leading: tuple[Any, ...]) -> bool:
    """True if a function read ``nbytes`` of the `numpy.dtype` that it was given.

    httomo gives its estimators a NumPy scalar, such as ``np.float32()``, which has ``nbytes`` where
    a dtype has ``itemsize``; its documented example reads the former.
    """
    given = any(value is error.obj for value in leading)
    return error.name == "nbytes" and given and isinstance(error.obj, np.dtype)


def _as_scalar(value: Any) -> Any:
    """NumPy scalar of a dtype; any other value as it is."""
    return value.type() if isinstance(value, np.dtype) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
