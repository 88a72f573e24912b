"""Meters of the memory that a piece of code uses: NumPy, CuPy, torch, the process and the GPU."""

from __future__ import annotations

from .all_meters import measure_peak
from .peak import Alive, MemorySample, Peak, Place

__all__ = ["Alive", "MemorySample", "Peak", "Place", "measure_peak"]
