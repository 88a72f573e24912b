"""Tomography methods for maxslices, on NumPy and CuPy from one source."""

from . import (
    corr,
    denoise,
    denoise_torch,
    morph,
    normalize,
    phase,
    recon,
    rescale,
    rotation,
    stripe,
)

__all__ = [
    "corr",
    "denoise",
    "denoise_torch",
    "morph",
    "normalize",
    "phase",
    "recon",
    "rescale",
    "rotation",
    "stripe",
]
