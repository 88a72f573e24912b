"""The functions of Python users: `describe`, `check`, `plan` and `run`, each in its own module.

They are imported from `maxslices`; planning imports nothing of what only runs need.
"""
