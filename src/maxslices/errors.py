"""All errors that maxslices raises on purpose.

They derive from `MaxslicesError`, which programs can catch, and which the command line prints as
one line with an exit code.
"""

from __future__ import annotations

import typing


class MaxslicesError(Exception):
    """Base of all errors of this package. Its text is written for users."""

    exit_code = 1
    """Exit status of the command line after this error."""


class UsageError(MaxslicesError):
    """An argument is invalid, such as a byte count, a shape or a device name."""

    exit_code = 2


class MissingPackageError(UsageError):
    """A package that running scans needs is not installed."""


class RegistrationError(MaxslicesError):
    """The declaration of a method is invalid."""


class UnknownMethodError(MaxslicesError):
    """A name does not belong to a registered method, or belongs to several."""


class EstimatorError(MaxslicesError):
    """A memory estimator raised, or returned an invalid value."""


class UntraceableError(EstimatorError):
    """A method cannot be traced, so its allocations are known only by running it."""


class PipelineError(MaxslicesError):
    """A pipeline is invalid.

    Parameters
    ----------
    message : str
        The fault, and the valid choices or the next step.
    where : str, optional
        File, line and column, for example ``"pipeline.yaml:12:5"``, written before the message.
    pointer : str, optional
        The line of the file, and a mark below the fault, written after the message.
    """

    def __init__(self, message: str, where: str | None = None, pointer: str = "") -> None:
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text}\n{pointer}" if pointer else text)
        self.where = where


class ParameterError(PipelineError):
    """A parameter of a method is unknown, missing or of the wrong type."""


class UnknownReferenceError(ParameterError):
    """A plan depends on a value that an earlier step finds during a run.

    Parameters
    ----------
    message : str
        The fault, and the valid choices or the next step.
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
    """A scan cannot be read: its file, layout or content is invalid."""


class ScanChangedError(SourceError):
    """A scan was replaced, truncated or changed while it was read, so its result is invalid."""


class StoreError(MaxslicesError):
    """A result cannot be written: its place is occupied, full or inaccessible."""


class LostResultError(StoreError):
    """The unfinished result of a run to resume is missing or damaged."""


class DoesNotFitError(MaxslicesError):
    """Even the smallest block needs more memory than the budget."""

    exit_code = 3


class PlanError(MaxslicesError):
    """A plan was made for another scan, pipeline, device or version."""

    exit_code = 3


class DeviceError(MaxslicesError):
    """The device does not exist, or its library is not installed."""


class RecordingError(MaxslicesError):
    """A recording disturbed the measured code, which must run again without it."""


class MethodError(MaxslicesError):
    """A method raised while it processed a block."""


class ReadOnlyInputError(MethodError):
    """A method wrote to its input, which is read-only."""


class OutOfMemoryError(MethodError):
    """The device ran out of memory inside a method, although the plan fits."""

    exit_code = 3
