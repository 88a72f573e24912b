"""What is raised here: errors of this package that are also the built-in ones expected."""

from __future__ import annotations

from ..errors import DeviceError, DoesNotFitError, UsageError


class ModelArgumentError(UsageError, ValueError):
    """An argument is missing or wrong for the model: channels, divisors, a patch."""


class NoDeviceError(DeviceError, RuntimeError):
    """There is no CUDA device, or no torch."""


class TooLargeError(DoesNotFitError, RuntimeError):
    """Not even the smallest batch or patch fits."""
