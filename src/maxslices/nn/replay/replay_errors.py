"""What a replay raises."""

from __future__ import annotations

from ...errors import UntraceableError


class TraceError(UntraceableError):
    """Code cannot be replayed without data; the text names the line."""


class DataDependentError(TraceError):
    """Code asks for values of a tensor, so what it does cannot be known without running it."""
