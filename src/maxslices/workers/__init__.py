"""Blocks of a plan run by many processes, on one machine or several, through Dask.

Only `engine="dask"` imports it, and with it ``distributed``.
"""
