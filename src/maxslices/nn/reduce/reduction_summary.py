"""Summary of a reduction: rewrites, memory and times."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ...core.block_memory import CONTEXT_BYTES
from ...core.units import format_bytes
from ..replay import Trace
from .rewrite import Rewrite
from .search import PlanSearch, ReductionPlan, has_expandable_segments


@dataclass(slots=True)
class ReductionSummary:
    """Rewrites of a reduced model, with memory and times before and after.

    The fields up to `recommendation` are those of spikingjelly's memopt pipeline. Its containers
    are the rewritten modules here.
    """

    profile: str | None = None
    checkpoint_budget: str | None = None
    prefer: str | None = None
    device: str = "cpu"
    requested_level: int | None = None
    applied_level: int | None = None
    compress_x: bool = True
    allow_expensive_profiling: bool = True
    applied_steps: list[str] = field(default_factory=list)
    skipped_steps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    gc_wrap_count: int = 0
    manual_compressor_count: int = 0
    bit_compressor_count: int = 0
    null_compressor_count: int = 0
    spatial_split_count: int = 0
    temporal_split_count: int = 0
    unwrap_count: int = 0
    gc_container_count: int = 0
    tcgc_container_count: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    gc_candidate_count: int = 0
    gc_selected_count: int = 0
    gc_selection_policy: str = "lowest_cost_under_traced_peak"
    gc_selected_modules: list[str] = field(default_factory=list)
    gc_selection_explanation: str = ""
    recommendation: str = ""

    limit_bytes: int = 0
    """Memory that torch's allocator may hold; 0 without a budget."""
    origin: str = ""
    """Source of the limit, as text."""
    rewrites: dict[str, Rewrite] = field(default_factory=dict)
    """Rewrites by path of the module."""
    peak_before_bytes: int = 0
    """Predicted ``max_memory_allocated`` of the unreduced step."""
    peak_after_bytes: int = 0
    """Predicted ``max_memory_allocated`` of the reduced step."""
    needed_before_bytes: int = 0
    """Predicted smallest limit of the allocator under which the unreduced step runs."""
    needed_after_bytes: int = 0
    """Predicted smallest limit under which the reduced step runs."""
    measured_before_bytes: int = 0
    """Measured ``max_memory_allocated`` of the unreduced step; 0 if it was not run."""
    measured_after_bytes: int = 0
    recomputed_flops: float = 0.0
    """Floating-point operations that a step recomputes."""
    forward_flops: float = 0.0
    """Floating-point operations of one forward pass."""
    predicted_added_s: float = 0.0
    """Predicted added time of a step."""
    predicted_step_s: float = 0.0
    """Predicted time of a reduced step; 0.0 if the unreduced step was not timed."""
    measured_step_before_s: float = 0.0
    measured_step_s: float = 0.0
    times_origin: str = ""
    workspaces: str = ""
    holds_peak: dict[str, int] = field(default_factory=dict)
    """Bytes by category at the peak of the reduced step."""
    holds_peak_modules: dict[str, int] = field(default_factory=dict)
    """Modules that hold most at that peak, with their bytes."""
    n_replays: int = 0
    search_s: float = 0.0
    """Duration of the search, without measurements on a device."""
    check_s: float = 0.0
    """Duration of the comparison of gradients and state with the unreduced step."""

    @property
    def fits(self) -> bool:
        """True if the reduced step is predicted to run within the limit."""
        return not self.limit_bytes or self.needed_after_bytes <= self.limit_bytes

    def to_dict(self) -> dict[str, Any]:
        """Figures in plain lists and dicts, rewrites as text."""
        rewrites = {path: str(rewrite) for path, rewrite in self.rewrites.items()}
        return {"fits": self.fits, **asdict(self), "rewrites": rewrites}

    def __str__(self) -> str:
        lines = [
            f"Peak {format_bytes(self.peak_before_bytes)} -> {format_bytes(self.peak_after_bytes)}"
            f" predicted (workspaces: {self.workspaces})"
        ]
        if self.limit_bytes:
            lines.append(
                f"  limit      {format_bytes(self.limit_bytes)} for tensors ({self.origin}); "
                f"needs {format_bytes(self.needed_after_bytes)}"
            )
        if self.measured_after_bytes:
            lines.append(
                f"  measured   {format_bytes(self.measured_after_bytes)} on {self.device}; "
                f"{self.measured_step_s * 1e3:.1f} ms a step, "
                f"{self.predicted_step_s * 1e3:.1f} ms predicted"
            )
        if self.forward_flops:
            lines.append(
                f"  recomputed {self.recomputed_flops / self.forward_flops:.0%} of a forward pass;"
                f" {self.predicted_added_s * 1e3:.2f} ms a step ({self.times_origin})"
            )
        groups: dict[str, list[str]] = {}
        for path, rewrite in self.rewrites.items():
            groups.setdefault(str(rewrite), []).append(path or "the model")
        for text, paths in groups.items():
            lines.append(f"  {text}: {', '.join(paths)}")
        lines += [f"  note       {note}" for note in self.notes]
        if self.recommendation:
            lines.append(f"  {self.recommendation}")
        times = f"{self.n_replays} replay{'s' * (self.n_replays != 1)}"
        lines.append(f"  found in {self.search_s:.1f} s by {times}")
        if self.check_s:
            lines.append(
                f"  gradients and state compared with the unreduced in {self.check_s:.1f} s"
            )
        return "\n".join(lines)


def fill_summary(summary: ReductionSummary, search: PlanSearch, plan: ReductionPlan) -> None:
    """Enter the figures of a search and of its plan into a summary."""
    before, after = search.tried[0], plan.trace
    summary.peak_before_bytes = before.trace.allocated_bytes
    summary.needed_before_bytes = before.needed_bytes
    summary.rewrites = plan.rewrites
    summary.notes += dict.fromkeys(search.notes)
    summary.workspaces, summary.times_origin = search.workspaces.origin, search.times.origin
    summary.peak_after_bytes = after.allocated_bytes
    summary.needed_after_bytes = plan.needed_bytes
    summary.forward_flops = search.flops[""].total
    summary.recomputed_flops = sum(c.recomputed_flops for c in plan.chosen)
    summary.predicted_added_s = plan.added_s
    summary.holds_peak = after.peak.by_category()
    summary.holds_peak_modules = dict(list(after.peak.by_module().items())[:8])
    summary.n_replays = search.n_replays
    gaps = after.needed_bytes - after.peak_bytes
    if plan.chosen and not has_expandable_segments():
        summary.recommendation = (
            f"{format_bytes(gaps)} are needed for gaps between blocks: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set before the process starts, "
            "avoids them, and a cheaper plan may then fit"
        )


def too_large_message(summary: ReductionSummary, after: Trace) -> str:
    """Message for a limit that no plan fits: the smallest need, and what holds it."""
    if summary.fits:
        return (
            f"the reduced step was predicted to need {format_bytes(summary.needed_after_bytes)} "
            f"and did not run within {format_bytes(summary.limit_bytes)}. The model is unchanged; "
            f"reduce it for {format_bytes(int(0.95 * summary.limit_bytes) + CONTEXT_BYTES)}"
        )
    peak = after.peak
    gaps = summary.needed_after_bytes - after.peak_bytes
    where = f"in the {peak.stage} of {peak.module}" if peak.module else f"in the {peak.stage}"
    return (
        f"no plan fits into {format_bytes(summary.limit_bytes)} ({summary.origin}): the smallest "
        f"found needs {format_bytes(summary.needed_after_bytes)} for tensors, a card of "
        f"{format_bytes(summary.needed_after_bytes + CONTEXT_BYTES)}; its peak is {where}, held "
        f"by {describe_holders(summary)}, and {format_bytes(gaps)} are lost between blocks. "
        "Take a smaller batch and accumulate its gradients, smaller inputs, autocast, or an "
        "optimizer with less state"
    )


def describe_holders(summary: ReductionSummary) -> str:
    """Categories that hold the peak, the largest first."""
    total = sum(summary.holds_peak.values())
    return ", ".join(
        f"{name} {format_bytes(size)}"
        for name, size in sorted(summary.holds_peak.items(), key=lambda item: -item[1])
        if size > total // 50
    )
