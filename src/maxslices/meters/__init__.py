"""Meters: how much memory a piece of code really uses, each way of counting apart."""

from __future__ import annotations

from .measure import measure_peak
from .record import Alive, Peak, Place, Step

__all__ = ["Alive", "Peak", "Place", "Step", "measure_peak"]
