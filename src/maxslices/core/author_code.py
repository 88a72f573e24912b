"""Check and call the functions that method authors declare.

Estimators, halos, output dims and dtypes may all be functions of the parameters. Their signatures
are checked when the method is registered, which rejects functions that could never be called.
Errors name the author's line.
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
    """A declared function and the arguments that it accepts."""

    owner: str
    """Full name of the method, for messages."""
    what: str
    """Keyword of the decorator, such as "calc_max_slices"."""
    function: Callable[..., Any]
    """The function itself."""
    keywords: frozenset[str]
    """Parameters of the method that it names after the positional arguments."""
    context_args: frozenset[str]
    """Names of context arguments that it accepts, such as ``device``. They are not parameters of
    the method."""
    hidden: frozenset[str]
    """Names of positional and context arguments. Parameters with these names are not passed."""
    accepts_all: bool
    """Whether it accepts ``**kwargs``."""

    @property
    def name(self) -> str:
        """Name for messages, such as "calc_max_slices my_estimator"."""
        name = name_of(self.function)
        return f"{self.what} {name}" if name and name != self.what else self.what

    def arguments(self, parameters: Mapping[str, Any], **context: Any) -> dict[str, Any]:
        """Keyword arguments of a call.

        Parameters
        ----------
        parameters : mapping
            The method's parameters. Those that the function names are passed, or all if it accepts
            ``**kwargs``.
        **context
            Context arguments, which are passed if the function names them. They take precedence.
        """
        keywords = {
            name: value
            for name, value in parameters.items()
            if name in self.keywords or (self.accepts_all and name not in self.hidden)
        }
        return keywords | {n: value for n, value in context.items() if n in self.context_args}

    def call(self, leading: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        """Call it with positional and keyword arguments.

        A function that reads ``nbytes`` of a `numpy.dtype` is called again with a NumPy scalar.

        Raises
        ------
        EstimatorError
            If it raises.
        """
        try:
            try:
                answer = self.function(*leading, **keywords)
            except AttributeError as error:
                if not _is_nbytes_of_dtype(error, leading):
                    raise
                answer = self.function(*map(_as_scalar, leading), **keywords)
            require_known(answer)
        except BaseException as error:
            raise self.named(error, leading, keywords) from error
        return answer

    def named(
        self, error: BaseException, leading: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> EstimatorError:
        """Error that names the call in which the author's code raised another one.

        Raises
        ------
        KeyboardInterrupt, UnknownReferenceError
            If `error` is one of these.
        """
        if isinstance(error, KeyboardInterrupt | UnknownReferenceError):
            raise error
        reason = f"raised {what_raised(error)}{raised_at(error, self.function)}"
        return EstimatorError(f"{self._call_text(leading, keywords)} {reason}")

    def describe_call(self, leading: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
        """Write a call with these arguments, for a message about its return value."""
        return f"{self._call_text(leading, keywords)}{defined_at(self.function)}"

    def _call_text(self, leading: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
        arguments = [_short(value) for value in leading]
        arguments += [f"{name}={_short(value)}" for name, value in keywords.items()]
        return f"{self.owner}: {self.name}({', '.join(arguments)})"


def make_callback(
    owner: str,
    what: str,
    function: Any,
    leading: tuple[str, ...],
    parameters: Mapping[str, inspect.Parameter],
    context_args: tuple[str, ...] = (),
    accepts_any: bool = False,
) -> Callback:
    """Check that a declared function can be called with the arguments it will receive.

    Parameters
    ----------
    owner : str
        Full name of the method.
    what : str
        Keyword of the decorator.
    function : object
        Value of the keyword.
    leading : tuple of str
        Names of the positional arguments.
    parameters : mapping
        The method's parameters.
    context_args : tuple of str
        Names that the function may have in addition to the method's parameters.
    accepts_any : bool
        Whether the method accepts ``**kwargs``, which makes every name a valid parameter.

    Raises
    ------
    RegistrationError
        If its signature does not match.
    """
    if not callable(function):
        raise RegistrationError(f"{owner}: {what} is {function!r}, not a function")
    label = f"{owner}: {what} {name_of(function) or repr(function)}"
    checked, names, allowed = function, leading, context_args
    if isinstance(function, LedgerEstimator):
        # Check the author's own function, although the estimator that wraps it is called.
        checked, names, allowed = function.function, ("m", "shape", "dtype"), ("slice_dim",)
        if "device" in function.keywords:
            raise RegistrationError(
                f"{label} names a parameter 'device', which ledgers do not receive: use m.device"
            )
    _check(label, checked, names, parameters, allowed, accepts_any)
    positional, further = _split(label, function, len(leading))
    named = {p.name for p in further if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    taken = {p.name for p in positional if p.kind is p.POSITIONAL_OR_KEYWORD}
    return Callback(
        owner=owner,
        what=what,
        function=function,
        keywords=frozenset(named.difference(context_args)),
        context_args=frozenset(named.intersection(context_args)),
        hidden=frozenset(taken | named.intersection(context_args)),
        accepts_all=any(p.kind is p.VAR_KEYWORD for p in further),
    )


def name_of(function: Any) -> str:
    """Name of a function, or an empty string."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else ""


def signature_of(label: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Read the parameters of a function.

    Raises
    ------
    RegistrationError
        If the function has no signature that Python can read, as some C functions.
    """
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RegistrationError(
            f"{label}: Python cannot read its signature ({error}): wrap it in a Python function"
        ) from None


def _split(
    label: str, function: Callable[..., Any], n_leading: int
) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Split the parameters into those of the positional arguments, and all further ones."""
    parameters = signature_of(label, function)
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    leading = by_position[:n_leading]
    return leading, [p for p in parameters if p not in leading]


def _check(
    label: str,
    function: Callable[..., Any],
    leading: tuple[str, ...],
    parameters: Mapping[str, inspect.Parameter],
    context_args: tuple[str, ...],
    accepts_any: bool,
) -> None:
    positional, further = _split(label, function, len(leading))
    wanted = f"it must take ({', '.join((*leading, '**kwargs'))})"
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in further)
    if len(positional) < len(leading) and not takes_more:
        raise RegistrationError(f"{label} takes {len(positional)} arguments by position: {wanted}")
    for place, p in enumerate(positional):
        if p.name in leading and p.name != leading[place]:
            raise RegistrationError(
                f"{label} takes {p.name!r} instead of {leading[place]!r}: {wanted}"
            )
    for p in further:
        required = p.default is p.empty
        if p.kind is p.POSITIONAL_ONLY and required:
            raise RegistrationError(f"{label} takes {p.name!r} by position only: {wanted}")
        if p.kind not in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD):
            continue
        if p.name not in {*parameters, *context_args} and not accepts_any:
            valid = ", ".join(sorted(parameters)) or "none"
            raise RegistrationError(
                f"{label} names a parameter {p.name!r} that the method does not have "
                f"(it has: {valid}){nearest(p.name, parameters)}"
            )


def _is_nbytes_of_dtype(error: AttributeError, leading: tuple[Any, ...]) -> bool:
    """True if a function read ``nbytes`` of its `numpy.dtype` argument.

    httomo passes a NumPy scalar such as ``np.float32()`` to its estimators, and its documented
    example reads ``nbytes`` of it. A dtype has ``itemsize`` instead.
    """
    is_argument = any(value is error.obj for value in leading)
    return error.name == "nbytes" and is_argument and isinstance(error.obj, np.dtype)


def _as_scalar(value: Any) -> Any:
    """NumPy scalar of a dtype; other values are returned unchanged."""
    return value.type() if isinstance(value, np.dtype) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def defined_at(function: Any) -> str:
    """Where a function is defined, as `` (file:line)``, or an empty string for compiled code."""
    code = _code(function)
    return "" if code is None else _place(code.co_filename, code.co_firstlineno)


def what_raised(error: BaseException) -> str:
    """Type and text of an error, in one printable line."""
    text = " ".join(text_of(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """Text of an error without control characters, or an empty string if its ``__str__`` raises."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an author's code
        return ""
    return "".join(c if c.isprintable() or c.isspace() else " " for c in text)


_LONGEST = 1000
"""Most characters of an error's text. They fill half of a terminal of 80 x 25."""


def raised_at(error: BaseException, function: Any) -> str:
    """Where a function's package raised an error, as `` (file:line)``.

    If a library raised it, this is the line of the package that called the library. If the
    traceback has no line of the package, because the arguments did not match, it is the line where
    the function is defined.

    Parameters
    ----------
    error : BaseException
        The error as it was caught.
    function : callable or str
        The function that was called, or the module that was imported.
    """
    code = None if isinstance(function, str) else _code(function)
    name = function if isinstance(function, str) else getattr(function, "__module__", None)
    package = str(name).partition(".")[0]
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == package or (code and file == code.co_filename):
            place = _place(file, line)
    return place or defined_at(function)


def _code(function: Any) -> CodeType | None:
    """Code of a function, also inside a partial, a callable object or a ledger."""
    function = inspect.unwrap(function)
    for _ in range(3):  # a partial of an object that is called
        if inspect.isfunction(function) or inspect.ismethod(function):
            return function.__code__
        inner = getattr(function, "func", getattr(function, "function", None))
        call = inner or getattr(type(function), "__call__", None)  # noqa: B004 - its code
        function = None if call is None else inspect.unwrap(call)
    return None


def _place(file: str, line: int) -> str:
    """A line in a file, with a relative path inside the working directory."""
    near = os.path.relpath(file)
    return f" ({file if near.startswith(os.pardir) else near}:{line})"


class UnknownValue:
    """Placeholder for an unknown value, passed to a method's declarations.

    Declarations that ignore the parameter work as usual. Declarations that compute with it,
    compare it or convert it raise an error, so a default value cannot replace it silently.

    Parameters
    ----------
    text : str
        The value as a pipeline has it, for messages.
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
        """Raise the error of a value that is needed too early."""
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
        if name.startswith("__"):  # protocols that Python and NumPy look for
            raise AttributeError(name)
        self.use()


def require_known(answer: Any) -> None:
    """Raise if a return value is an `UnknownValue` or contains one."""
    items = answer if isinstance(answer, tuple | list) else (answer,)
    for item in items:
        if isinstance(item, UnknownValue):
            item.use()
