"""What is imported before workers are forked."""

from __future__ import annotations

import gc
import importlib
import os
from contextlib import suppress

import numpy as np

from . import worker  # noqa: F401
from .fork_server import ON_GPUS, SAFE_PATH, leave_interrupts

# What a worker would import when it is given the pipeline and first asked: each took 1 s for that
# with the methods of maxslices_methods, and takes 0.3 (two cores, 2026-11-27). The threads that it
# starts are those of OpenBLAS, which stands being forked, as that of NumPy. CuPy does not begin to
# use a GPU when imported, which a forked process could not continue. The modules of methods may do
# that, so each worker imports these itself, and torch where one needs it: for all workers it would
# take longer than all else together.
_GPU_MODULES = ("cupy",) if os.environ.pop(ON_GPUS, None) else ()
for _name in (*_GPU_MODULES, "distributed", "scipy.ndimage", "maxslices.api.on_workers"):
    with suppress(Exception):  # the command or a method reports what is missing, and why
        importlib.import_module(_name)

# Else NumPy's own generator would draw the same numbers in all workers.
os.register_at_fork(after_in_child=np.random.seed)

# A collection in a worker would write to what is imported, and so copy it: 30 MB of a worker with
# torch (four H200s, 2026-11-26).
gc.freeze()
os.environ.pop(SAFE_PATH, None)  # workers have the environment of who asks, and it from there
leave_interrupts()
