"""Code of method authors: declared functions are checked once and called safely.

Estimators, halos, output dims and dtypes may all be functions of the parameters. What
each can be given is read from its signature when the method is registered, so that a
function that could never be called is refused there. Errors name the author's line.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn

import numpy as np

from ..errors import EstimatorError, RegistrationError, UnknownReferenceError
from .ledger import LedgerEstimator
from .parameters import nearest


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
        try:
            try:
                answer = self.function(*leading, **given)
            except AttributeError as error:
                if not _is_nbytes_of_dtype(error, leading):
                    raise
                answer = self.function(*map(_as_scalar, leading), **given)
            require_known(answer)
        except BaseException as error:
            raise self.named(error, leading, given) from error
        return answer

    def named(
        self, error: BaseException, leading: tuple[Any, ...], given: Mapping[str, Any]
    ) -> EstimatorError:
        """Error that names the call in which the author's code raised another one.

        Raises
        ------
        KeyboardInterrupt, UnknownReferenceError
            If it is one of these, which say what they have to.
        """
        if isinstance(error, KeyboardInterrupt | UnknownReferenceError):
            raise error
        said = f"raised {what_raised(error)}{raised_at(error, self.function)}"
        return EstimatorError(f"{self._call_text(leading, given)} {said}")

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
    checked, names, facts = function, leading, told
    if isinstance(function, LedgerEstimator):
        # The function that the author wrote is checked; the estimator made of it is called.
        checked, names, facts = function.function, ("m", "shape", "dtype"), ("slice_dim",)
        if "device" in function.keywords:
            raise RegistrationError(
                f"{label} names 'device': a ledger's is m.device, and it is given no parameter of "
                "this name"
            )
    _check(label, checked, names, parameters, facts, accepts_any)
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
        If Python cannot tell.
    """
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RegistrationError(
            f"{label}: Python cannot read its signature ({error}); wrap it in a function that has "
            "one"
        ) from None


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


def defined_at(function: Any) -> str:
    """Where a function is defined, as `` (file:line)``; empty for compiled code."""
    code = _code(function)
    return "" if code is None else _place(code.co_filename, code.co_firstlineno)


def what_raised(error: BaseException) -> str:
    """Kind and text of an error that an author's code raised, in one line that can be printed."""
    text = " ".join(text_of(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """What an error says, without control characters; empty if its author's ``__str__`` fails."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an author's code
        return ""
    return "".join(c if c.isprintable() or c.isspace() else " " for c in said)


_LONGEST = 1000
"""Characters of an error's text: a screen of 80 columns shows these in half of its lines."""


def raised_at(error: BaseException, function: Any) -> str:
    """Where a function's package raised an error, as `` (file:line)``.

    What a library raises counts for the line that called it. Where no line of the package is in
    the traceback, as if a call does not match, this is where the function is defined.

    Parameters
    ----------
    error : BaseException
        As it was caught.
    function : callable or str
        What was called; or the module that was imported.
    """
    code = None if isinstance(function, str) else _code(function)
    name = function if isinstance(function, str) else getattr(function, "__module__", None)
    package = str(name).partition(".")[0]
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == package or (code and file == code.co_filename):
            found = _place(file, line)
    return found or defined_at(function)


def _code(function: Any) -> CodeType | None:
    """Code of a function, whatever it is wrapped in: a partial, an object, a ledger."""
    function = inspect.unwrap(function)
    for _ in range(3):  # a partial of an object that is called
        if inspect.isfunction(function) or inspect.ismethod(function):
            return function.__code__
        inner = getattr(function, "func", getattr(function, "function", None))
        function = inner or getattr(type(function), "__call__", None)  # noqa: B004 - its code
    return None


def _place(file: str, line: int) -> str:
    """A line in a file, whose path is short in the folder one is in."""
    near = os.path.relpath(file)
    return f" ({file if near.startswith(os.pardir) else near}:{line})"


class UnknownValue:
    """Stand-in for a value that is not known yet, passed to a method's declarations.

    A declaration that ignores the parameter works as with any value. One that computes with it,
    compares it or converts it raises the error that `error` makes, so that no default can take
    the value's place unnoticed.

    Parameters
    ----------
    text : str
        How the value is written in a pipeline, for messages.
    error : callable
        Makes the error.
    """

    __slots__ = ("_error", "_text")

    def __init__(self, text: str, error: Callable[[], Exception]) -> None:
        self._text = text
        self._error = error

    def __repr__(self) -> str:
        return self._text

    def use(self, *args: object) -> NoReturn:
        """Raise the error of a value that is needed before it is known."""
        raise self._error()

    __bool__ = __int__ = __float__ = __complex__ = __index__ = __len__ = __iter__ = use
    __lt__ = __le__ = __gt__ = __ge__ = use
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = use
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = use
    __pow__ = __rpow__ = __and__ = __rand__ = __or__ = __ror__ = __lshift__ = __rlshift__ = use
    __neg__ = __pos__ = __abs__ = __invert__ = __round__ = __trunc__ = __floor__ = __ceil__ = use
    __getitem__ = __contains__ = __call__ = __array__ = __format__ = __str__ = __hash__ = use

    def __eq__(self, other: object) -> bool:
        self.use()

    def __ne__(self, other: object) -> bool:
        self.use()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python and NumPy look for by themselves
            raise AttributeError(name)
        self.use()


def require_known(answer: Any) -> None:
    """Raise if an answer is, or has among its items, a value that is not known yet."""
    items = answer if isinstance(answer, tuple | list) else (answer,)
    for item in items:
        if isinstance(item, UnknownValue):
            item.use()
