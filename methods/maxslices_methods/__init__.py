"""Tomography methods for maxslices, on NumPy and CuPy from one source."""
