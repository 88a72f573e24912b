"""Ends of blocks that the allocator does not split: handed out, and used by nobody."""

from __future__ import annotations

import math

from ...core.units import MIB
from .caching_allocator import SMALL_BYTES
from .trace import Trace
from .workspaces import STATED

DEVIATIONS = 2
"""Standard deviations by which ends may exceed the simulated ones. With all workspaces known, those
of 149 of 150 steps on an H200 did not exceed that, and of 77 of 80 that were kept apart."""


def unused_ends_bytes(trace: Trace) -> int:
    """Unused ends of blocks at the peak.

    A block of more than 1 MiB that is used again has an end of 0 to 1 MiB. Which blocks are follows
    from where all lie, down to the order in which a loop lets go of its tensors. Without a device
    the sum of the ends is therefore a random number: of k ends that are anything from 0 to 1 MiB,
    with k from Poisson's distribution, the variance is 2 / 3 MiB of the mean. The mean is the
    simulated sum and 1 MiB, and no block has more than one end.
    """
    found = trace.allocated_bytes - trace.peak_bytes
    if trace.workspaces.origin != STATED:
        return found
    blocks = sum(storage.n_bytes > SMALL_BYTES for storage in trace.peak.alive)
    deviation = math.isqrt(2 * (found + MIB) * MIB // 3)
    return found + max(0, min(blocks * MIB - found, DEVIATIONS * deviation))
