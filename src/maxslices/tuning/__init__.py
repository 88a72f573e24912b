"""Tricks with the system that make runs faster. Without any of them a run gives the same result.

Each module says what the trick gains, in which run, and when that was measured: how much longer the
run takes with this trick alone switched off.
"""
