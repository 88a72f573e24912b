"""Methods of a laboratory that knows nothing of maxslices but its documentation."""

from __future__ import annotations

from . import filters

__all__ = ["filters"]
