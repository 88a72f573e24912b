"""Scans in, results out, and what lies between two sections."""

from __future__ import annotations

from .loader_options import AngleRange, LoaderOptions, Preview, SideData
from .scratch import ScratchStore
from .sink import Sink, SinkFormat, create_sink, remove_result
from .source import SideName, Source, open_source
from .store import MemoryStore, Store

__all__ = [
    "AngleRange",
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
    "create_sink",
    "open_source",
    "remove_result",
]
