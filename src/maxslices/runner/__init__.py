"""Runs a plan, and measures while it does."""

from .folder.results_folder import RunFolder
from .report.run_report import Report, SectionReport
from .report.run_timeline import Timeline

__all__ = ["Report", "RunFolder", "SectionReport", "Timeline"]
