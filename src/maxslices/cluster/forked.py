"""What is imported before workers are forked."""

from __future__ import annotations

import os

import distributed  # noqa: F401
import numpy as np

from . import worker  # noqa: F401

# Else NumPy's own generator would draw the same numbers in all workers.
os.register_at_fork(after_in_child=np.random.seed)
