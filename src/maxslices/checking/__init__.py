"""Estimates held against measured peaks: what the test kit and ``maxslices measure`` share."""
