"""Estimates held against measured peaks, for the test kit and ``maxslices measure``."""
