"""Errors of torch about tensors without data, translated to the user's line or module."""

from __future__ import annotations

from .attribution import line_of
from .module_calls import Failure
from .replay_errors import DataDependentError, TraceError

_NEEDS_DATA = (
    "cannot be called on meta tensors",
    "attempted to run this operator with Meta tensors",
    "data-independent implementation",
    "Cannot copy out of meta tensor",
    "is not supported for meta",
    "meta tensors don't support",
    ".numpy() is not supported for tensor subclasses",
)
"""Phrases in messages of torch where code asks for values."""


def translated(error: BaseException, failure: Failure | None) -> TraceError | None:
    """Error that names the user's line or module; None if the original is as clear."""
    if isinstance(error, DataDependentError):
        return None
    text = str(error)
    if not isinstance(error, NotImplementedError | RuntimeError) or not any(
        part in text for part in _NEEDS_DATA
    ):
        return _refused(error, failure)
    where = line_of(error.__traceback__)
    return DataDependentError(
        f"{where}: this line needs the values of a tensor, so what it allocates cannot be "
        f"known without running it ({text.splitlines()[0]})"
    )


def _refused(error: BaseException, failure: Failure | None) -> TraceError | None:
    """Error that names the module which refused its input."""
    if failure is None or not isinstance(error, RuntimeError | ValueError | IndexError):
        return None
    if failure.error_id != id(error) or any(failure.module.children()):
        return None
    given = " and ".join("x".join(map(str, shape)) or "a scalar" for shape in failure.shapes)
    where = f"{failure.path}: " if failure.path else ""
    return TraceError(f"{where}{failure.module} cannot take {given}: {str(error).splitlines()[0]}")
