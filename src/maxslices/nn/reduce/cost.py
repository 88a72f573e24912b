"""What a treatment costs in time: counted where there is no device, measured where there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ...tracing import Spec
from ..materialize import materialize
from ..step import Step, real_tensors
from .candidates import Candidate

DEAR_LAYERS = (
    nn.modules.conv._ConvNd,
    nn.Linear,
    nn.Bilinear,
    nn.MultiheadAttention,
)
"""Layers that a selective checkpoint does not run again, but for what is around them."""
N_TIMED = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """Speeds of a device, for the prediction of times."""

    flops_per_s: float = 45e12
    """Of convolutions and matrix products."""
    bytes_per_s: float = 3.0e12
    """Of its memory, read and written."""
    link_bytes_per_s: float = 45e9
    """Between the device and pinned memory of the host, one way."""
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
    step_s: float = 0.0
    """Of the unreduced step; 0.0 if it is not known."""
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
    dear = _dear_paths(model)
    for candidate in found:
        path, kind = candidate.path, candidate.treatment.kind
        moved = candidate.again_bytes / rates.bytes_per_s
        if kind == "checkpoint":
            candidate.again_flops = flops.get(path, 0.0)
            candidate.cost_s = times.forward_s.get(
                path, candidate.again_flops / rates.flops_per_s + moved
            )
        elif kind == "selective":
            inside = [p for p in dear if p == path or p.startswith(path + ".")]
            whole = times.forward_s.get(path)
            if whole is not None:
                candidate.cost_s = max(
                    0.1 * whole, whole - sum(times.forward_s.get(p, 0.0) for p in inside)
                )
            else:
                candidate.cost_s = moved
        elif kind == "offload":
            candidate.cost_s = candidate.link_bytes / rates.link_bytes_per_s
        else:
            candidate.cost_s = moved


def _dear_paths(model: nn.Module) -> list[str]:
    found: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, DEAR_LAYERS) and not any(path.startswith(p + ".") for p in found):
            found.append(path)
    return found


def measure(step: Step, inputs: Sequence[Any], device: torch.device) -> Times:
    """Measure the forward pass of each module on a CUDA device.

    A copy with zeros for weights is run without gradients, which takes little memory; the
    real model is not touched.
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
    with torch.cuda.device(device), torch.no_grad():
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
                totals[path] = min(totals.get(path, seconds), seconds)
    for hook in hooks:
        hook.remove()
    link = _link_rate(device)
    stated = Rates.stated(step.amp)
    rates = Rates(stated.flops_per_s, stated.bytes_per_s, link, "measured")
    del given, model
    torch.cuda.empty_cache()
    return Times(rates, totals, 0.0, f"measured on {torch.cuda.get_device_name(device)}")


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
