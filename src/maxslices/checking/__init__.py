"""Comparison of estimates with measured peaks, for the test kit and ``maxslices measure``."""
