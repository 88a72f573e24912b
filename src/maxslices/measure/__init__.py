"""Meters of the memory that a piece of code uses: NumPy, CuPy, torch, the process and the GPU."""

from __future__ import annotations

from .all_meters import measure_peak
from .allocation_sequence import Alive, CallSite
from .peak import Peak

__all__ = ["Alive", "CallSite", "Peak", "measure_peak"]
