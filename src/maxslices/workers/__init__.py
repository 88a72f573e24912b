"""Run the blocks of a plan in several processes, on one machine or more, with Dask.

Only `engine="dask"` imports it, and with it ``distributed``.
"""
