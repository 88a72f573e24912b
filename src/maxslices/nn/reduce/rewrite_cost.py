"""Cost in time of single rewrites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..replay import Replay, Workspaces
from ..replay.module_calls import module_flops
from ..step.model_step import ModelStep
from .candidates import PACK_OPS, Candidate
from .device_rates import ForwardTimes
from .module_ranges import EXPENSIVE_LAYERS
from .step_timeline import BACKWARD, HOST_BACKWARD, Flops, StepTimeline, flops_of

HIDDEN = 0.2
"""Weight of time that is hidden behind a busy device or host. 0 would let the search take any
number of hidden rewrites, which together are not hidden; 1 would count them as if nothing ran
in parallel."""


def flops_by_module(step: ModelStep, inputs: Sequence[Any]) -> dict[str, Flops]:
    """Floating-point operations of each module's forward pass, children included."""
    with Replay(workspaces=Workspaces.none(), lines=False) as record:
        model = record.model(step.meta_copy(), is_on_meta=True)
        given = record.input(tuple(inputs))
        with torch.set_grad_enabled(step.mode != "inference"):
            counted = module_flops(model, lambda: model(*given))
    found = {}
    for path, by_op in counted.items():
        convolutions = sum(n for op, n in by_op.items() if "convolution" in str(op))
        found[path] = Flops(float(convolutions), float(sum(by_op.values()) - convolutions))
    return found


def price(
    found: Sequence[Candidate],
    timeline: StepTimeline,
    flops: Mapping[str, Flops],
    times: ForwardTimes,
) -> None:
    """Set the times of candidates, and `cost_s`."""
    whole_s = max(timeline.step_s(), 1e-9)
    device_busy, host_busy = timeline.device_s.sum() / whole_s, timeline.host_s.sum() / whole_s
    for candidate in found:
        _set_times(candidate, timeline, flops, times)
        added_s = timeline.added_s([candidate])
        hidden_s = max(device_busy * candidate.device_s, host_busy * candidate.host_s) - added_s
        candidate.cost_s = float(added_s + HIDDEN * max(hidden_s, 0.0))


def _set_times(
    candidate: Candidate,
    timeline: StepTimeline,
    all_flops: Mapping[str, Flops],
    times: ForwardTimes,
) -> None:
    path = candidate.path
    forward_s, host_s = timeline.device_of.get(path, 0.0), timeline.host_of.get(path, 0.0)
    flops = flops_of(all_flops, path, timeline.order)
    rates, rewrite, n_runs = times.rates, candidate.rewrite, timeline.parts
    parts = rewrite.parts
    moved_s = n_runs * candidate.recomputed_bytes / rates.bytes_per_s
    checkpoint_s = n_runs * rates.checkpoint_s
    n_packed = sum(name != "none" for name in rewrite.compressors)
    packs_s = n_runs * n_packed * PACK_OPS * rates.launch_s
    again_s = host_s + n_runs * candidate.recomputed_ops * rates.again_s
    if rewrite.kind == "checkpoint":
        for path in candidate.spared:
            forward_s -= timeline.device_of.get(path, 0.0)
        spared = sum(flops_of(all_flops, path, timeline.order).total for path in candidate.spared)
        candidate.recomputed_flops = flops.total - spared
        candidate.device_s = forward_s
        # Each part takes the host as long as the whole.
        candidate.wrapped_s = parts * checkpoint_s / 2 + (parts - 1) * host_s + packs_s
        candidate.host_s = candidate.wrapped_s + parts * (checkpoint_s / 2 + again_s)
        candidate.host_s += (parts - 1) * HOST_BACKWARD * host_s
    elif rewrite.kind == "selective":
        kept_s = flops.seconds(rates)
        if times.forward_s:
            kept_s = sum(
                times.forward_s.get(p, 0.0) for p in _expensive_inside(candidate, timeline)
            )
        candidate.device_s = max(0.1 * forward_s, forward_s - kept_s)
        candidate.host_s = checkpoint_s + again_s
        candidate.host_s += n_runs * candidate.recomputed_ops * rates.selective_s
    else:
        # Parts of the batch are recomputed, and copied to the host once more.
        n_copies = 2 if n_runs == 1 else 3
        link_s = n_runs * n_copies * candidate.link_bytes / rates.link_bytes_per_s
        candidate.device_s = moved_s + link_s
        candidate.copied_s = link_s / n_copies
        candidate.host_s = n_runs * candidate.recomputed_ops * rates.launch_s


def price_of_parts(
    root: Candidate, of_parts: StepTimeline, whole: StepTimeline, flops: Flops, times: ForwardTimes
) -> None:
    """Set the times of running the whole model in parts, each of them recomputed.

    Small parts use a device less well, so the forward pass is measured at the size of a part. The
    timeline of parts assumes that the backward pass is longer in the same proportion; half of
    that was measured, so the other half is subtracted.
    """
    parts = root.rewrite.parts
    root.recomputed_flops = flops.total
    forward_s, at_once_s = of_parts.device_of[""], whole.device_of[""]
    root.device_s = forward_s - BACKWARD / 2 * (forward_s - at_once_s)
    root.host_s = parts * (times.rates.checkpoint_s + root.recomputed_ops * times.rates.again_s)
    root.host_s += of_parts.host_of[""]
    root.cost_s = of_parts.step_s([root]) - whole.step_s()


def _expensive_inside(candidate: Candidate, timeline: StepTimeline) -> list[str]:
    """Outermost convolutions and matrix products of a module or range."""
    found: list[str] = []
    order = timeline.order
    for path, module in order.modules.items():
        if isinstance(module, EXPENSIVE_LAYERS) and not any(
            path.startswith(p + ".") for p in found
        ):
            found.append(path)
    own = candidate.path
    return [path for path in found if path == own or order.is_inside(path, own)]
