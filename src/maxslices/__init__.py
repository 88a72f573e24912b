"""maxslices: GPU image processing in as many slices as fit."""

from __future__ import annotations

from .arrays import ArraySpec
from .errors import MaxslicesError
from .ledger import Ledger, from_ledger
from .memory import MemoryModel
from .method import method
from .registry import Registry, registry

__version__ = "0.1.0"
__all__ = [
    "ArraySpec",
    "Ledger",
    "MaxslicesError",
    "MemoryModel",
    "Registry",
    "from_ledger",
    "method",
    "registry",
]
