"""What is imported before workers with GPUs are forked.

CuPy does not begin to use a GPU when imported, which a forked process could not go on with. The
modules of methods may do that, so each worker imports these itself, and torch where one needs it:
for all workers it would take longer than all else together.
"""

from __future__ import annotations

import importlib
from contextlib import suppress

with suppress(Exception):  # the run says what it misses, and why
    importlib.import_module("cupy")

from . import forked  # noqa: F401
