"""Tomography methods for maxslices, on NumPy and CuPy from one source."""

from . import corr, morph, normalize, phase, recon, rescale, stripe

__all__ = ["corr", "morph", "normalize", "phase", "recon", "rescale", "stripe"]
