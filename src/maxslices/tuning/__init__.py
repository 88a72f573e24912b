"""Optimizations that depend on the system. They do not change results.

Each module states how much longer a run takes with this optimization alone switched off, and when
that was measured.
"""
