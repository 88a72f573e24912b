"""The language of pipelines: files, checked steps, references, and sections."""

from .pipeline import Pipeline
from .scan_spec import ScanSpec
from .sections import Section, cut_into_sections
from .steps import Reference, Step

__all__ = ["Pipeline", "Reference", "ScanSpec", "Section", "Step", "cut_into_sections"]
