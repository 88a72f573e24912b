"""Scans in, results out, and what lies between two sections."""

from __future__ import annotations

from .access import (
    HasDetectorStart,
    SupportsForget,
    SupportsSideWindow,
    SupportsView,
    SupportsWindow,
)
from .loader_options import AngleRange, LoaderOptions, Preview, SideData
from .scratch import ScratchStore
from .side_name import SideName
from .sink import Sink, SinkFormat, create_sink, remove_result
from .source import Source, open_source
from .store import MemoryStore, Store

__all__ = [
    "AngleRange",
    "HasDetectorStart",
    "LoaderOptions",
    "MemoryStore",
    "Preview",
    "ScratchStore",
    "SideData",
    "SideName",
    "Sink",
    "SinkFormat",
    "Source",
    "Store",
    "SupportsForget",
    "SupportsSideWindow",
    "SupportsView",
    "SupportsWindow",
    "create_sink",
    "open_source",
    "remove_result",
]
