"""Sources (scans), sinks (results) and stores (results between two sections)."""

from __future__ import annotations

from .access import (
    HasDetectorStart,
    HasDummies,
    HasPixelSize,
    LooksAtFrames,
    ReadsRows,
    SideName,
    SupportsChangeCheck,
    SupportsSideWindow,
    SupportsView,
    SupportsWindow,
)
from .results.sink import Sink, SinkFormat, SinkStart, incomplete_path, remove_result, result_path
from .results.writers import create_sink, sink_maker
from .scans.frame_source import Source
from .scans.loader import AngleRange, LoaderFault, LoaderOptions, Preview, SideData, parse_loader
from .scans.open_source import ArrayScan, open_source
from .stores.scratch import ScratchStore
from .stores.store import MemoryStore, Store

__all__ = [
    "AngleRange",
    "ArrayScan",
    "HasDetectorStart",
    "HasDummies",
    "HasPixelSize",
    "LoaderFault",
    "LoaderOptions",
    "LooksAtFrames",
    "MemoryStore",
    "Preview",
    "ReadsRows",
    "ScratchStore",
    "SideData",
    "SideName",
    "Sink",
    "SinkFormat",
    "SinkStart",
    "Source",
    "Store",
    "SupportsChangeCheck",
    "SupportsSideWindow",
    "SupportsView",
    "SupportsWindow",
    "create_sink",
    "incomplete_path",
    "open_source",
    "parse_loader",
    "remove_result",
    "result_path",
    "sink_maker",
]
