"""Tomography methods for maxslices, on NumPy and CuPy from one source."""

from . import phase, recon, stripe

__all__ = ["phase", "recon", "stripe"]
