"""Makes a training step fit: the cheapest way, in time, that stays within the memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...estimators.areas import measured_areas
from ...tracing import Spec, Trace, WorkAreas
from ...units import format_bytes
from ..errors import ModelArgumentError, TooLargeError
from ..memory import CONTEXT_BYTES, budget_of, device_of
from ..step import Step, optimizer_named, precision
from .binary import probe_binary
from .candidates import Candidate, Study, candidates, study
from .cost import Rates, Times, flops_by_module, measure, price
from .device import resolve_device, run_for_real
from .inplace import safe_in_place, set_in_place
from .search import Plan, Searcher, has_expandable_segments, needed_bytes
from .split import batch_parts, part_of, time_candidates
from .states import ResettingStep
from .summary import ReductionSummary
from .treat import Treatment, treat, untreat

MEANS = ("in-place", "pack", "selective", "checkpoint", "split", "offload")
"""What may be done, all exact: "split" adds up weights' gradients in another order."""


def reduce_memory(
    model: nn.Module,
    inputs: Any,
    memory: str | int | None = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Callable[..., Any] | None = None,
    optimizer: Any = "adam",
    amp: torch.dtype | bool | None = None,
    means: Sequence[str] = MEANS,
    compressors: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    max_search_s: float = 20.0,
) -> tuple[nn.Module, ReductionSummary]:
    """Change how a model is trained until a step fits into the memory of a card.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place, on the device where it is: parameters, their names and the results
        are the same. `restore` undoes it.
    inputs : tensor, Spec, or a tuple of them
        Arguments of the model in the step that is to fit; not read, but to find binary inputs.
    memory : str or int, optional
        Of the card, such as "12GB"; by default what is free on the device. CUDA's context
        (0.6 GB) is taken off.
    loss : callable, optional
        ``loss(output, *targets)``; by default the sum of the output.
    targets : callable, optional
        Makes the `Spec` of the targets of those of the inputs; by default by the loss.
    optimizer : str, torch.optim.Optimizer, callable or None
        As for `maxslices.nn.max_batch_size`.
    amp : torch.dtype or bool, optional
        Lower precision of autocast; True is float16.
    means : sequence of str
        Of `MEANS`, those that may be used.
    compressors : mapping, optional
        Compressor of the inputs of a module, by its path: a name of
        `maxslices.nn.reduce.COMPRESSORS`, or "none". By default bits where all inputs that
        were tried held 0 and 1 alone. A module's own attribute ``x_compressor`` counts too.
    device : torch.device or str, optional
        Where it is confirmed, if there is one; by default the model's, else this process's.
    max_search_s : float
        Seconds after which the best plan so far is taken.

    Returns
    -------
    torch.nn.Module
        The same object.
    ReductionSummary
        What was done, peaks before and after, predicted and (with a device) measured.

    Raises
    ------
    TooLargeError
        If no plan fits, with the smallest memory that would do and what holds it; the model
        is left as it was.
    ModelArgumentError
        If an argument is wrong, or the model does not run on the inputs.

    Notes
    -----
    Gradients are those of the unreduced model to the bit, with deterministic kernels; but for
    "split", which adds up weights' gradients in parts.
    """
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    unknown = [m for m in means if m not in MEANS]
    if unknown:
        raise ModelArgumentError(f"{unknown[0]!r} is none of the means: {', '.join(MEANS)}")
    specs = specs_of(given)
    untreat(model)
    place = device_of(model, device or _own_device(model, memory), memory)
    budget = budget_of(model, place, memory)
    step = with_targets(
        ResettingStep(model, "training", optimizer_named(optimizer), loss, targets, precision(amp))
    )
    areas = WorkAreas.allowance()
    began = time.perf_counter()
    before = step.trace(specs, areas)
    calibration_s = 0.0
    if place is not None:
        areas, calibration_s = measured_areas(before.calls, place)
        before = before.with_work_areas(areas)
    summary = ReductionSummary(
        device=str(place or next((p.device for p in model.parameters()), "cpu")),
        limit_bytes=budget.limit_bytes,
        origin=budget.origin,
        work_areas=areas.origin,
        peak_before_bytes=before.allocated_bytes,
        needed_before_bytes=needed_bytes(before),
        options={"means": tuple(means), "memory": memory},
    )
    searcher = Searcher(
        step, specs, areas, budget.limit_bytes, began + calibration_s + max_search_s
    )
    times = Times(Rates.stated(step.amp), origin=Rates.stated(step.amp).origin)
    flops = flops_by_module(step, specs)
    chosen: list[Candidate] = []
    after = before
    if needed_bytes(before) > budget.limit_bytes:
        if "in-place" in means:
            searcher.in_place = safe_in_place(step, specs)
            if searcher.in_place:
                after = searcher.trace({})
                if after.peak_bytes >= before.peak_bytes:
                    searcher.in_place, after = (), before
        if needed_bytes(after) > budget.limit_bytes:
            measuring = time.perf_counter()
            if place is not None:
                times = measure(step, specs, place)
            measuring = time.perf_counter() - measuring
            searcher.deadline += measuring
            calibration_s += measuring
            binary = probe_binary(model, given) if "pack" in means else {}
            search = _Search(
                searcher, means, names_of_compressors(model, binary, compressors), flops, times
            )
            plan = search.best(before, summary)
            chosen, after = plan.chosen, plan.trace
    _fill(summary, searcher, chosen, after, flops, times)
    summary.search_s = time.perf_counter() - began - calibration_s
    if not summary.fits:
        raise TooLargeError(_why_not(summary, after))
    set_in_place(model, summary.in_place)
    treat(model, summary.treatments)
    if place is not None:
        _confirm(summary, step, specs, place, times, chosen)
    return model, summary


def restore(model: nn.Module, summary: ReductionSummary) -> nn.Module:
    """Undo what `reduce_memory` did to a model, and return it."""
    untreat(model)
    set_in_place(model, summary.in_place, False)
    return model


@dataclass(slots=True)
class _Search:
    """Tries the whole model in no parts, and then in some."""

    searcher: Searcher
    means: Sequence[str]
    compressors: dict[str, tuple[str, ...]]
    flops: Mapping[str, float]
    times: Times

    def best(self, before: Trace, summary: ReductionSummary) -> Plan:
        """Return the cheapest plan that fits; the one with the lowest peak if none does."""
        searcher = self.searcher
        model, inputs = searcher.step.model, searcher.inputs
        seen, found = self._found(inputs)
        summary.gc_candidate_count = len({c.path for c in found})
        offset = before.peak_bytes - int(seen.usage.max())
        best = searcher.find(seen, found, offset)
        all_parts = batch_parts(model, inputs, summary.notes) if "split" in self.means else []
        for parts in all_parts:
            root = Candidate("", Treatment("checkpoint", (), parts), [])
            price([root], model, self.flops, self.times)
            is_good = best is not None and searcher.fits(best)
            late = time.perf_counter() > searcher.deadline
            if (is_good and best is not None and best.cost_s <= root.cost_s) or late:
                break  # more parts are no cheaper
            # The cache of a selective checkpoint cannot be read twice, as it would be inside.
            seen, found = self._found(part_of(inputs, parts))
            found = [c for c in found if c.treatment.kind != "selective"]
            plan = searcher.find(seen, found, offset, root)
            if plan is not None and (best is None or self._is_better(plan, best)):
                best = plan
        return best if best is not None else Plan([], before)

    def _is_better(self, plan: Plan, best: Plan) -> bool:
        fits, fit = self.searcher.fits(plan), self.searcher.fits(best)
        if fits != fit:
            return fits
        if fits:
            return plan.cost_s < best.cost_s
        return plan.needed_bytes < best.needed_bytes

    def _found(self, inputs: Sequence[Any]) -> tuple[Study, list[Candidate]]:
        searcher = self.searcher
        model = searcher.step.model
        seen = study(searcher.step, inputs, searcher.work_areas, searcher.in_place)
        found = candidates(seen, model, self.means, self.compressors)
        if "split" in self.means:
            found += time_candidates(seen, model, self.compressors)
        price(found, model, self.flops, self.times)
        return seen, found


def with_targets(step: Step) -> Step:
    """Return a step whose targets are worked out once for inputs of a shape."""
    if step.loss is None:
        return step
    known: dict[Any, tuple[Any, ...]] = {}

    def targets(*inputs: Any) -> tuple[Any, ...]:
        key = str(inputs)
        if key not in known:
            known[key] = step.target_specs(inputs)
        return known[key]

    return replace(step, targets=targets)


def specs_of(inputs: Any) -> tuple[Any, ...]:
    """Return inputs, their tensors as `Spec`."""
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return tuple(
        Spec(tuple(i.shape), i.dtype, i.requires_grad) if torch.is_tensor(i) else i for i in given
    )


def _own_device(model: nn.Module, memory: Any) -> torch.device | None:
    first = next(iter(model.parameters()), None)
    if first is not None and first.device.type == "cuda":
        return first.device
    own = resolve_device()
    return own if own.type == "cuda" else None


def names_of_compressors(
    model: nn.Module, binary: dict[str, tuple[bool, ...]], compressors: Mapping[str, Any] | None
) -> dict[str, tuple[str, ...]]:
    """Return names of compressors by path: as asked for, else bits for binary inputs."""
    found = {
        path: tuple("bit" if each else "none" for each in flags) for path, flags in binary.items()
    }
    asked: dict[str, Any] = {
        path: module.x_compressor
        for path, module in model.named_modules()
        if getattr(module, "x_compressor", None) is not None
    }
    asked.update(compressors or {})
    known = dict(model.named_modules())
    for path, spec in asked.items():
        if path not in known:
            raise ModelArgumentError(f"compressors: there is no module {path!r}")
        name = spec if isinstance(spec, str) else getattr(spec, "name", type(spec).__name__)
        found[path] = (name,) * max(1, len(found.get(path, ())))
    return found


def _fill(
    summary: ReductionSummary,
    searcher: Searcher,
    chosen: Sequence[Candidate],
    after: Trace,
    flops: Mapping[str, float],
    times: Times,
) -> None:
    summary.in_place = list(searcher.in_place)
    summary.treatments = {c.path: c.treatment for c in chosen}
    summary.notes += dict.fromkeys(searcher.notes)
    summary.peak_after_bytes = after.allocated_bytes
    summary.needed_after_bytes = needed_bytes(after)
    summary.forward_flops = flops.get("", 0.0)
    summary.recomputed_flops = sum(
        flops.get(c.path, 0.0) for c in chosen if c.treatment.kind == "checkpoint"
    )
    summary.predicted_added_s = sum(c.cost_s for c in chosen)
    summary.times_origin = times.origin
    summary.holds_peak = after.peak.by_category()
    summary.holds_peak_modules = dict(list(after.peak.by_module().items())[:8])
    summary.n_replays = searcher.n_replays + 1
    again = [c for c in chosen if c.treatment.kind in ("checkpoint", "selective")]
    summary.gc_wrap_count = summary.gc_container_count = summary.gc_selected_count = len(again)
    summary.gc_selected_modules = [c.path for c in again]
    summary.gc_selection_explanation = (
        f"{len(again)} modules are computed again: the least time for which the traced peak "
        "stays within the limit."
    )
    if chosen and not has_expandable_segments():
        lost = after.needed_bytes - after.peak_bytes
        summary.recommendation = (
            f"{format_bytes(lost)} are needed for gaps between blocks: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set before the process starts, "
            "avoids them, and a cheaper plan may then fit"
        )
    names = [name for c in chosen for name in c.treatment.compressors]
    summary.bit_compressor_count = names.count("bit")
    summary.null_compressor_count = names.count("none")
    summary.tcgc_container_count = summary.temporal_split_count = sum(
        c.treatment.parts > 1 for c in chosen
    )
    for kind in dict.fromkeys(c.treatment.kind for c in chosen):
        summary.applied_steps.append(kind)
    if summary.in_place:
        summary.applied_steps.append("in-place")


def _confirm(
    summary: ReductionSummary,
    step: Step,
    specs: Sequence[Any],
    place: torch.device,
    times: Times,
    chosen: Sequence[Candidate],
) -> None:
    """Run the reduced step under its limit, and the unreduced one if there is room."""
    free = torch.cuda.mem_get_info(place)[0] + torch.cuda.memory_reserved(place)
    made = run_for_real(step, specs, place, summary.limit_bytes)
    if made is None:
        restore(step.model, summary)
        raise TooLargeError(
            f"the reduced step was predicted to need {format_bytes(summary.needed_after_bytes)} "
            f"and did not run within {format_bytes(summary.limit_bytes)}: the model is as it was; "
            f"reduce it for {format_bytes(int(0.95 * summary.limit_bytes) + CONTEXT_BYTES)}"
        )
    summary.measured_after_bytes = made.allocated_bytes
    summary.measured_step_s = made.step_s
    if summary.needed_before_bytes < free:
        model = step.model
        untreat(model)
        set_in_place(model, summary.in_place, False)
        try:
            whole = run_for_real(step, specs, place)
        finally:
            set_in_place(model, summary.in_place)
            treat(model, summary.treatments)
        if whole is not None:
            summary.measured_before_bytes = whole.allocated_bytes
            summary.measured_step_before_s = whole.step_s
            summary.predicted_step_s = whole.step_s + summary.predicted_added_s


def _why_not(summary: ReductionSummary, after: Trace) -> str:
    peak = after.peak
    where = f"in the {peak.stage} of {peak.module}" if peak.module else f"in the {peak.stage}"
    return (
        f"no plan fits into {format_bytes(summary.limit_bytes)} ({summary.origin}): the smallest "
        f"found needs {format_bytes(summary.needed_after_bytes)} for tensors, a card of "
        f"{format_bytes(summary.needed_after_bytes + CONTEXT_BYTES)}; its peak is {where}, held "
        f"by {describe_holders(summary)}. Smaller inputs, a smaller batch, autocast, or an "
        "optimizer with less state would help"
    )


def describe_holders(summary: ReductionSummary) -> str:
    """Return what holds the peak, largest first."""
    total = sum(summary.holds_peak.values())
    return ", ".join(
        f"{name} {format_bytes(size)}"
        for name, size in sorted(summary.holds_peak.items(), key=lambda item: -item[1])
        if size > total // 50
    )
