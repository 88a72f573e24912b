"""Meters: how much memory a piece of code really uses, each way of counting apart."""

from __future__ import annotations

from .all_meters import measure_peak
from .peak import Alive, Peak, Place, Step

__all__ = ["Alive", "Peak", "Place", "Step", "measure_peak"]
