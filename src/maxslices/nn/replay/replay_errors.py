"""Errors of a replay."""

from __future__ import annotations

from ...errors import UntraceableError


class TraceError(UntraceableError):
    """Code cannot be replayed without data; the message names the line."""


class DataDependentError(TraceError):
    """Code reads values of a tensor, so what it allocates depends on data."""
