"""Errors of this package, each also a built-in ``ValueError`` or ``RuntimeError``."""

from __future__ import annotations

from ..errors import DeviceError, DoesNotFitError, MaxslicesError, UntraceableError, UsageError


class TraceError(UntraceableError):
    """Code cannot be replayed without data; the message names the line."""


class DataDependentError(TraceError):
    """Code reads values of a tensor, so what it allocates depends on data."""


class ModelArgumentError(UsageError, ValueError):
    """An argument is missing, or is wrong for the model: channels, divisors, a patch."""


class NoDeviceError(DeviceError, RuntimeError):
    """No CUDA device, or no torch."""


class TooLargeError(DoesNotFitError, RuntimeError):
    """Even the smallest batch or patch does not fit."""


class RewriteError(MaxslicesError, RuntimeError):
    """A rewritten module whose gradients or state would not be those of the module as it was."""

    def __init__(self, path: str, how: str, reason: str, advice: str = "") -> None:
        super().__init__(path, how, reason, advice)
        self.path = path
        """Dotted path of the module."""

    def __str__(self) -> str:
        path, how, reason, advice = self.args
        return f"{path or 'the model'} cannot be {how}, as {reason}" + (
            f". {advice}"
            if advice
            else ": gradients or state would be wrong. Reduce the model again with inputs like "
            "these, or leave this module as it is"
        )


def first_line(error: BaseException | None) -> str:
    """First line of an error's text, or its kind: torch adds stacks of C++."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__
