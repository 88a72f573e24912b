"""What is imported before workers with GPUs are forked.

Neither library begins to use a GPU when imported, which a forked process could not go on with. The
modules of methods may do that, so each worker imports these itself. torch comes first: it looks
through all modules that are imported, which has those of CuPy import some more (0.6 s).
"""

from __future__ import annotations

import importlib
from contextlib import suppress

for _name in ("torch", "cupy"):
    with suppress(Exception):  # the run says what it misses, and why
        importlib.import_module(_name)

from . import forked  # noqa: E402, F401
