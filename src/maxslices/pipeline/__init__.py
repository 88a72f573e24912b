"""The language of pipelines: files, checked steps, references, and sections."""

from .pipeline import Pipeline, Section, cut_into_sections
from .requirements import ScanSpec
from .steps import Reference, Step

__all__ = ["Pipeline", "Reference", "ScanSpec", "Section", "Step", "cut_into_sections"]
