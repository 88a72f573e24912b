"""Attacks with damaged and hostile input: each case ends well, or in one clear line.

A case runs in a process of its own, which may not take more than some seconds and some hundred
megabytes. ``python -m tests.fuzz --seconds 600`` runs new cases for ten minutes with new seeds;
`tests/fuzz/test_fuzz.py` runs a few cases of each kind with fixed ones.
"""
