"""Sources (scans), sinks (results) and stores (results between two sections)."""

from __future__ import annotations

from .access import SideName, Source, SupportsWindow
from .results.result_names import remove_result
from .results.sink import Sink
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
    "Source",
    "Store",
    "SupportsWindow",
    "open_source",
    "parse_loader",
    "remove_result",
]
