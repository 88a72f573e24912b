"""What is imported before workers are forked."""

from __future__ import annotations

import gc
import os

_collects = gc.isenabled()
gc.disable()

import distributed  # noqa: E402, F401
import numpy as np  # noqa: E402

from . import worker  # noqa: E402, F401
from .fork_server import take_interrupts  # noqa: E402

# Else NumPy's own generator would draw the same numbers in all workers.
os.register_at_fork(after_in_child=np.random.seed)

# A collection in a worker would write to what is imported, and so copy it.
gc.freeze()
if _collects:
    gc.enable()
take_interrupts()
