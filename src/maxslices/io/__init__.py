"""Sources (scans), sinks (results) and stores (results between two sections)."""

from __future__ import annotations

from .access import (
    HasDetectorStart,
    HasDummies,
    ReadsRows,
    SupportsChangeCheck,
    SupportsSideWindow,
    SupportsView,
    SupportsWindow,
)
from .atomic_sink import SinkStart, incomplete_path
from .loader_options import AngleRange, LoaderOptions, Preview, SideData
from .loader_parameters import LoaderFault, parse_loader
from .open_source import open_source
from .scratch import ScratchStore
from .side_name import SideName
from .sink import Sink, SinkFormat, create_sink, remove_result, result_path, sink_maker
from .source import Source
from .store import MemoryStore, Store

__all__ = [
    "AngleRange",
    "HasDetectorStart",
    "HasDummies",
    "LoaderFault",
    "LoaderOptions",
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
