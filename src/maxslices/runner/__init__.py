"""Runs a plan, and measures while it does."""

from .execute import execute
from .folder import RunFolder
from .report import Report, SectionReport
from .timeline import Timeline

__all__ = ["Report", "RunFolder", "SectionReport", "Timeline", "execute"]
