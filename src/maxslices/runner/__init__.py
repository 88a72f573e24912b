"""Runs a plan, and measures while it does."""

from .execute import execute
from .results_folder import RunFolder
from .run_report import Report, SectionReport
from .run_timeline import Timeline

__all__ = ["Report", "RunFolder", "SectionReport", "Timeline", "execute"]
