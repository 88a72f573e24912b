"""Tomography methods for maxslices, on NumPy and CuPy from one source."""


from . import recon

__all__ = ["recon"]
