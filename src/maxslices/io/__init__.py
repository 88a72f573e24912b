"""Scans in, results out, and what lies between two sections."""

from __future__ import annotations

from .options import AngleRange, LoaderOptions, Preview, SideData
from .sink import Sink, create_sink
from .source import Source, open_source

__all__ = [
    "AngleRange",
    "LoaderOptions",
    "Preview",
    "SideData",
    "Sink",
    "Source",
    "create_sink",
    "open_source",
]
