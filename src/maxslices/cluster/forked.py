"""What is imported before workers are forked."""

from __future__ import annotations

import gc
import os

import distributed  # noqa: F401
import numpy as np

from . import worker  # noqa: F401
from .fork_server import take_interrupts

# Else NumPy's own generator would draw the same numbers in all workers.
os.register_at_fork(after_in_child=np.random.seed)

# A collection in a worker would write to what is imported, and so copy it: 30 MB of a worker with
# torch (four H200s, 2026-11-26).
gc.freeze()
take_interrupts()
