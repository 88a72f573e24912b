"""Execute a plan, and measure its memory and times."""

from .folder.run_folder import RunFolder
from .folder.run_results import Results, ResultsInMemory
from .report.run_report import Report, SectionReport

__all__ = ["Report", "Results", "ResultsInMemory", "RunFolder", "SectionReport"]
