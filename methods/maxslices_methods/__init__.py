"""Tomography methods for maxslices, on NumPy and CuPy from one source."""

from . import corr, denoise, morph, normalize, phase, recon, rescale, rotation, stripe

__all__ = [
    "corr",
    "denoise",
    "morph",
    "normalize",
    "phase",
    "recon",
    "rescale",
    "rotation",
    "stripe",
]
