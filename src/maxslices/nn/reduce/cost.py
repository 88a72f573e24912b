"""What a treatment costs in time: counted where there is no device, measured where there is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from ...tracing import Spec
from ..materialize import materialize
from ..step import Step, real_tensors
from .candidates import PACK_OPS, Candidate
from .places import DEAR_LAYERS, Order, children_of, run_at

N_TIMED = 3
STEP_S, HOST_STEP_S = 3.0, 2.2
"""Time of a step for that of its forward pass: on the device, and on the host."""
HIDDEN = 0.2
"""What a second counts where device or host, whichever is faster, waits for the other."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Speeds of a device, for the prediction of times."""

    flops_per_s: float = 45e12
    """Of convolutions and matrix products."""
    bytes_per_s: float = 3.0e12
    """Of its memory, read and written."""
    link_bytes_per_s: float = 45e9
    """Between the device and pinned memory of the host, one way."""
    launch_s: float = 6e-6
    """What the host takes for an operator."""
    checkpoint_s: float = 0.4e-3
    """What the host takes for a checkpoint, beside the operators that are run again."""
    origin: str = "stated for an H200, single precision"

    @classmethod
    def stated(cls, amp: torch.dtype | None) -> Rates:
        """Return what is allowed for where nothing was measured."""
        if amp is None:
            return cls()
        return cls(flops_per_s=350e12, origin="stated for an H200, half precision")


@dataclass(slots=True)
class Times:
    """What is known of the time of a step."""

    rates: Rates
    forward_s: Mapping[str, float] = field(default_factory=dict)
    """Of each module, children included; empty without a device."""
    device_s: float = 0.0
    """Of the unreduced step on the device, about."""
    host_s: float = 0.0
    """What the host takes to tell the device of it."""
    origin: str = "counted"


def flops_by_module(step: Step, inputs: Sequence[Any]) -> dict[str, float]:
    """Return the floating-point operations of each module's forward pass, children included."""
    model = step.twin()
    given = [
        i.empty() if isinstance(i, Spec) else torch.empty_like(i, device="meta") for i in inputs
    ]
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(*given)
    root = type(model).__name__
    found = {}
    for name, by_op in counter.get_flop_counts().items():
        path = name.removeprefix(root).removeprefix(".") if name != "Global" else ""
        found[path] = float(sum(by_op.values()))
    return found


def price(
    found: Sequence[Candidate], model: nn.Module, flops: Mapping[str, float], times: Times
) -> None:
    """Set `cost_s` of candidates."""
    rates = times.rates
    modules = dict(model.named_modules())
    order = Order(model)
    dear = _dear_paths(model)

    def total(of: Mapping[str, float], path: str) -> float | None:
        """Return what is known of a module, or of the modules of a run."""
        if path in of:
            return of[path]
        run = run_at(path)
        if run is None or not of:
            return None
        return sum(of.get(each, 0.0) for each in children_of(run, modules))

    for candidate in found:
        path, kind, parts = candidate.path, candidate.treatment.kind, candidate.treatment.parts
        moved_s = candidate.again_bytes / rates.bytes_per_s
        forward_s = total(times.forward_s, path)
        packs = sum(name != "none" for name in candidate.treatment.compressors)
        host_s = candidate.again_ops * rates.launch_s
        if kind == "checkpoint":
            candidate.again_flops = total(flops, path) or 0.0
            if forward_s is None:
                forward_s = candidate.again_flops / rates.flops_per_s + moved_s
            candidate.again_flops *= candidate.wider
            # Of wider bands the forward pass, that again, and the backward pass, twice that.
            candidate.device_s = (4 * candidate.wider - 3) * forward_s
            # A wrapped layer is not run again as a whole, but what saves its results is.
            candidate.host_s = parts * rates.checkpoint_s + 3 * host_s
            candidate.host_s += packs * PACK_OPS * rates.launch_s
            if candidate.treatment.window is not None:
                candidate.host_s += 4 * (parts - 1) * host_s
        elif kind == "selective":
            candidate.device_s = moved_s
            if forward_s is not None:
                inside_s = sum(
                    times.forward_s.get(p, 0.0)
                    for p in dear
                    if p == path or order.is_inside(p, path)
                )
                candidate.device_s = max(0.1 * forward_s, forward_s - inside_s)
            candidate.host_s = rates.checkpoint_s + 6 * host_s
        elif kind == "offload":
            candidate.device_s = candidate.link_bytes / rates.link_bytes_per_s
        else:
            candidate.device_s, candidate.host_s = moved_s, host_s
        major, minor = candidate.device_s, candidate.host_s
        if times.host_s > times.device_s:
            major, minor = minor, major
        candidate.cost_s = major + HIDDEN * minor


def counted(times: Times, flops: float, moved_bytes: int, n_ops: int) -> Times:
    """Return times with those of the step, counted from its forward pass."""
    rates = times.rates
    device_s = flops / rates.flops_per_s + moved_bytes / rates.bytes_per_s
    host_s = n_ops * rates.launch_s
    return replace(times, device_s=STEP_S * device_s, host_s=HOST_STEP_S * host_s)


def longer_s(chosen: Sequence[Candidate], times: Times) -> float:
    """Return how much longer a step takes: device and host work at the same time."""
    device_s = times.device_s + sum(c.device_s for c in chosen)
    host_s = times.host_s + sum(c.host_s for c in chosen)
    return max(device_s, host_s) - max(times.device_s, times.host_s)


def price_of_parts(root: Candidate, whole: Times, of_part: Times, n_ops: int) -> None:
    """Set `cost_s` of running the whole model in parts, each computed twice.

    Small parts use a device less well: so its forward pass is measured at the size of a part,
    and the backward pass taken to be longer by as much. Where nothing was measured, it is the
    host that limits small parts.
    """
    parts, rates = root.treatment.parts, whole.rates
    forward_s = whole.forward_s.get("", root.device_s)
    if of_part.forward_s:
        in_parts_s = of_part.forward_s[""]
    else:
        in_parts_s = max(forward_s, parts * n_ops * rates.launch_s)
    slower = max(in_parts_s / forward_s, 1.0) if forward_s else 1.0
    root.device_s = (3 * slower - 2) * forward_s
    root.host_s = parts * (rates.checkpoint_s + 3 * n_ops * rates.launch_s)
    root.cost_s = root.device_s


def _dear_paths(model: nn.Module) -> list[str]:
    found: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, DEAR_LAYERS) and not any(path.startswith(p + ".") for p in found):
            found.append(path)
    return found


def measure(step: Step, inputs: Sequence[Any], device: torch.device, parts: int = 1) -> Times:
    """Measure the forward pass of each module on a CUDA device, and the link to the host.

    A copy with zeros for weights is run as in training, but what would be kept for the
    backward pass is dropped, so it takes little memory; the real model is not touched.
    Given the inputs of one of several parts, times are those of all parts.
    """
    model = step.twin()
    materialize(model, device)
    given = real_tensors(tuple(inputs), device)
    spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
    open_events: list[torch.cuda.Event] = []

    def enter(_m: nn.Module, _args: Any) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        open_events.append(event)

    def leave(path: str) -> Callable[..., None]:
        def hook(_m: nn.Module, _args: Any, _made: Any) -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            spans.append((path, open_events.pop(), event))

        return hook

    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave(path)))
    totals: dict[str, float] = {}
    host_s = math.inf
    with torch.cuda.device(device), saved_tensors_hooks(_dropped, _dropped):
        for repeat in range(N_TIMED + 1):
            spans.clear()
            with torch.autocast("cuda", dtype=step.amp or torch.float16, enabled=bool(step.amp)):
                model(*given)
            torch.cuda.synchronize(device)
            if repeat == 0:  # kernels are loaded and chosen
                continue
            now: dict[str, float] = {}
            for path, first, last in spans:
                now[path] = now.get(path, 0.0) + first.elapsed_time(last) * 1e-3
            for path, seconds in now.items():
                totals[path] = min(totals.get(path, math.inf), parts * seconds)
        for hook in hooks:
            hook.remove()
        for _ in range(N_TIMED):
            began = time.perf_counter()
            with torch.autocast("cuda", dtype=step.amp or torch.float16, enabled=bool(step.amp)):
                model(*given)
            host_s = min(host_s, time.perf_counter() - began)
            torch.cuda.synchronize(device)
    link = _link_rate(device)
    stated = Rates.stated(step.amp)
    rates = replace(stated, link_bytes_per_s=link, origin="measured")
    del given, model
    torch.cuda.empty_cache()
    return Times(
        rates, totals, STEP_S * totals[""], HOST_STEP_S * parts * host_s,
        f"measured on {torch.cuda.get_device_name(device)}",
    )  # fmt: skip


def _dropped(_: Any) -> Any:
    return None


def _link_rate(device: torch.device) -> float:
    """Return bytes per second to pinned memory, by one copy of 64 MiB."""
    on_device = torch.zeros(2**26, dtype=torch.uint8, device=device)
    on_host = torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
    on_host.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    on_host.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize(device)
    return 2**26 / (time.perf_counter() - began)
