"""Errors of this package, each also a built-in ``ValueError`` or ``RuntimeError``."""

from __future__ import annotations

from ..errors import DeviceError, DoesNotFitError, UsageError


class ModelArgumentError(UsageError, ValueError):
    """An argument is missing, or is wrong for the model: channels, divisors, a patch."""


class NoDeviceError(DeviceError, RuntimeError):
    """No CUDA device, or no torch."""


class TooLargeError(DoesNotFitError, RuntimeError):
    """Even the smallest batch or patch does not fit."""
