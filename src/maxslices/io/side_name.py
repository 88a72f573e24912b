"""The names of the two stacks of frames beside the projections."""

from __future__ import annotations

from typing import Literal, get_args

SideName = Literal["flats", "darks"]
"""Flats (beam without sample) or darks (no beam)."""
SIDE_NAMES: tuple[SideName, ...] = get_args(SideName)
"""Both."""
