"""Errors of this package, each also a built-in ``ValueError`` or ``RuntimeError``."""

from __future__ import annotations

from ..errors import DeviceError, DoesNotFitError, MaxslicesError, UntraceableError, UsageError


class TraceError(UntraceableError):
    """Code that cannot be replayed without data, with its line in the message."""


class DataDependentError(TraceError):
    """Code that reads values of a tensor, so its allocations depend on data."""


class ModelArgumentError(UsageError, ValueError):
    """An argument that is missing or wrong for the model."""


class NoDeviceError(DeviceError, RuntimeError):
    """A missing CUDA device, or torch."""


class TooLargeError(DoesNotFitError, RuntimeError):
    """A smallest batch or patch that does not fit."""


class RewriteError(MaxslicesError, RuntimeError):
    """A rewritten module with gradients or state that would differ from the original ones."""

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
            "these, or do not rewrite this module"
        )


def first_line(error: BaseException | None) -> str:
    """First line of an error's text, or its class. torch adds C++ stacks."""
    return (str(error).splitlines() or [""])[0] or type(error).__name__
