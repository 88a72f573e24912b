"""A parameter whose value only a run can find: any use of it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


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
