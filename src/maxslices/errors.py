"""Every error that maxslices raises on purpose.

One tree, so that a program can catch `MaxslicesError` and a command line can turn
any of them into one line and an exit code.
"""

from __future__ import annotations

import typing


class MaxslicesError(Exception):
    """Base of all errors of this package; its text is meant to be read by a user."""

    exit_code = 1
    """Exit status of the command line when this error ends it."""


class UsageError(MaxslicesError):
    """An argument cannot be understood: a byte count, a shape, a device name."""

    exit_code = 2


class MissingPackageError(UsageError):
    """A package that running scans needs is not installed."""


class RegistrationError(MaxslicesError):
    """A method cannot be registered as it was declared."""


class UnknownMethodError(MaxslicesError):
    """No registered method has the name asked for, or more than one has."""


class EstimatorError(MaxslicesError):
    """A memory estimator raised, or returned what is not a number of slices."""


class UntraceableError(EstimatorError):
    """A method cannot be traced: what it allocates is known only by running it."""


class PipelineError(MaxslicesError):
    """A pipeline is not well formed.

    Parameters
    ----------
    message : str
        What is wrong and what would be right.
    where : str, optional
        File, line and column, for example ``"pipeline.yaml:12:5"``; put before the message.
    pointer : str, optional
        The line of the file, and a mark below its fault; put after the message.
    """

    def __init__(self, message: str, where: str | None = None, pointer: str = "") -> None:
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text}\n{pointer}" if pointer else text)
        self.where = where


class ParameterError(PipelineError):
    """A method is given an unknown, missing or mistyped parameter."""


class UnknownReferenceError(ParameterError):
    """A plan depends on a value that only an earlier step of a run can find.

    Parameters
    ----------
    message : str
        What is wrong and what would be right.
    where, pointer : str, optional
        As for `PipelineError`.
    reference : Reference, optional
        The reference to the value.
    """

    def __init__(
        self,
        message: str,
        where: str | None = None,
        pointer: str = "",
        reference: typing.Any = None,
    ) -> None:
        super().__init__(message, where, pointer)
        self.reference = reference


class SourceError(MaxslicesError):
    """A scan cannot be read: the file, its layout or what it holds."""


class ScanChangedError(SourceError):
    """A scan was replaced, cut or changed while it was read: what was made of it is no use."""


class StoreError(MaxslicesError):
    """A result cannot be written: the place is taken, full or out of reach."""


class LostResultError(StoreError):
    """The unfinished result of a run that should go on is gone or damaged."""


class DoesNotFitError(MaxslicesError):
    """The work needs more memory than the budget, even in the smallest block."""

    exit_code = 3


class PlanError(MaxslicesError):
    """A plan was made for something else than it is to be carried out on."""

    exit_code = 3


class DeviceError(MaxslicesError):
    """The device asked for is not there, or its library is not installed."""


class RecordingError(MaxslicesError):
    """A recording disturbed the code under measurement, which has to run again without it."""


class MethodError(MaxslicesError):
    """A method raised while it processed a block."""


class ReadOnlyInputError(MethodError):
    """A method wrote to its input, which it was given read-only."""


class OutOfMemoryError(MethodError):
    """The device ran out of memory inside a method, though the plan said it fits."""

    exit_code = 3
