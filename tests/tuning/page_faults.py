"""Page faults: how often this thread waited for a page to be made."""

from __future__ import annotations

import resource
from collections.abc import Callable


def faults_of(call: Callable[[], object]) -> int:
    """Page faults of this thread during a call."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
