"""Sources (scans), sinks (results) and stores (results between two sections)."""

from __future__ import annotations

from .access import SideName, Source, SupportsWindow
from .results.sink import Sink, SinkFormat, SinkStart, remove_result
from .results.writers import create_sink, sink_maker
from .scans.loader import AngleRange, LoaderFault, LoaderOptions, Preview, SideData, parse_loader
from .scans.open_source import ArrayScan, open_source
from .stores.store import MemoryStore, ScratchStore

Store = MemoryStore | ScratchStore
"""Result of a section for the next one, written and read in blocks along either slice dim."""

__all__ = [
    "AngleRange",
    "ArrayScan",
    "LoaderFault",
    "LoaderOptions",
    "MemoryStore",
    "Preview",
    "ScratchStore",
    "SideData",
    "SideName",
    "Sink",
    "SinkFormat",
    "SinkStart",
    "Source",
    "Store",
    "SupportsWindow",
    "create_sink",
    "open_source",
    "parse_loader",
    "remove_result",
    "sink_maker",
]
