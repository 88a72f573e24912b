"""Plans of a reduction: rewrites, the memory they need and the time they add."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from ...core.memory_model import last_true
from ..replay import CachingAllocator, Trace
from ..replay.caching_allocator import ROUND_BYTES
from ..replay.expandable_segments import ExpandableAllocator, least_expandable_limit
from ..replay.steady_state import Steady, steady
from .candidates import Candidate
from .device_rates import DeviceRates
from .knapsack import Knapsack
from .rewrite import Rewrite
from .step_timeline import StepTimeline


class SearchSpace(NamedTuple):
    """Candidates and times of the model, or of one of several parts of its batch."""

    knapsack: Knapsack
    """Candidates, and the memory in use with and without them."""
    timeline: StepTimeline
    root: Candidate | None
    """Rewrite of the whole model that each plan includes: the parts of its batch."""
    whole_s: float
    """Duration of the unreduced step."""
    rates: DeviceRates

    def with_root(self, rows: Sequence[int]) -> list[Candidate]:
        """Candidates of some rows of the knapsack, and those that each plan includes."""
        picked = [self.knapsack.candidates[row] for row in rows]
        return picked if self.root is None else [self.root, *picked]

    def added_s(self, rows: Sequence[int]) -> float:
        """Time that rewrites add to a step, without that of the limit."""
        return self.timeline.step_s(self.with_root(rows)) - self.whole_s

    def timed(self, plan: ReductionPlan) -> ReductionPlan:
        """The plan with the time that it adds."""
        chosen, trace = plan.chosen, plan.trace
        plan.refused_s = self.rates.without_workspaces_s(trace, plan.later.refused)
        plan.added_s = self.timeline.step_s(chosen) - self.whole_s + plan.refused_s
        plan.added_s += plan.later.taken_bytes / self.rates.reallocated_bytes_per_s
        return plan


@dataclass(slots=True)
class ReductionPlan:
    """Rewrites, with the replay of two steps."""

    chosen: list[Candidate]
    trace: Trace
    limit_bytes: InitVar[int] = 0
    """Limit of the allocator. If the two steps run under it, all further ones must run as well."""
    in_place: tuple[str, ...] = ()
    """Activations that work in place."""
    added_s: float = 0.0
    """Added time of a step. That of the limit is included: memory is given back to the device and
    taken again, and convolutions whose workspaces find no room take slower kernels."""
    refused_s: float = 0.0
    """Part of it due to the slower kernels."""
    first_bytes: int = field(init=False)
    """Smallest limit under which the first two steps run."""
    needed_bytes: int = field(init=False)
    """Smallest limit under which all further steps run too. Below it, workspaces may find no room,
    and cuDNN's kernels without one are several times slower."""
    later: Steady = field(init=False)
    """Effect of the limit on further steps."""

    def __post_init__(self, limit_bytes: int) -> None:
        trace = self.trace
        if has_expandable_segments():
            self.first_bytes = least_expandable_limit(trace.requests(), trace.peak_bytes)
        else:
            self.first_bytes = trace.needed_bytes
        self.needed_bytes, self.later = self.first_bytes, Steady(False)
        if self.first_bytes <= limit_bytes:
            self.later = steady(trace, allocator(limit_bytes))
            if not self.later.runs:
                self.needed_bytes = later_bytes(trace, limit_bytes)

    @property
    def rewrites(self) -> dict[str, Rewrite]:
        """Rewrites by path of the module."""
        return {candidate.path: candidate.rewrite for candidate in self.chosen}


def has_expandable_segments() -> bool:
    """True if an environment variable tells torch's allocator to use expandable segments."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return any("expandable_segments:True" in os.environ.get(name, "") for name in names)


def allocator(limit_bytes: int | None = None) -> CachingAllocator | ExpandableAllocator:
    """Simulation of the allocator of this process."""
    kind = ExpandableAllocator if has_expandable_segments() else CachingAllocator
    return kind(limit_bytes)


def later_bytes(trace: Trace, too_low_bytes: int) -> int:
    """Limit under which all steps run, given one that is too low."""
    free = allocator()
    steady(trace, free)
    part = max(too_low_bytes // 256, ROUND_BYTES)

    def fails(limit: int) -> bool:
        return not steady(trace, allocator(limit * part)).runs

    low, high = too_low_bytes // part, -(-free.peak_reserved_bytes // part) + 1
    while fails(high):  # segments that grow need room for all of a block
        low, high = high, 2 * high
    return (last_true(fails, low, high) + 1) * part
