"""Times of a step and of rewrites, measured on a device or estimated for an H200.

Host and device work at the same time, so a step takes as long as the slower of the two: its forward
pass, its backward pass, and the time that rewrites add to each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ..replay import Replay, Workspaces
from ..replay.meta_copy import materialize
from ..replay.module_calls import module_flops
from ..replay.trace import Storage
from ..step.model_step import ModelStep, real_tensors
from .candidates import Candidate
from .study import EXPENSIVE_LAYERS, ForwardCall, ModuleOrder, StepStudy

N_TIMED = 3
"""Number of timed forward passes. The shortest counts, as a host may be slow for a while."""
CYCLES_PER_S = 2e9
"""Clock of the device, approximately: an H200 runs at up to 1.98 GHz."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Speeds of a device and its host, for predicted times. The defaults are those of an H200."""

    convolution_flops_per_s: float = 110e12
    """For convolutions, which may round their factors to TF32 by default."""
    flops_per_s: float = 50e12
    """For matrix products in single precision."""
    bytes_per_s: float = 3.0e12
    """Of the device's memory, reading and writing."""
    channel_bytes_per_s: float = 2.4e9
    """For each channel that a norm of a single sample writes. One block of threads writes a
    channel, whatever their number."""
    link_bytes_per_s: float = 55e9
    """Between the device and pinned host memory, in one direction."""
    launch_s: float = 8e-6
    """Host time of one operator."""
    python_s: float = 0.32e-3
    """Host time of an operator that a library defines in Python and that starts kernels itself,
    such as a spiking neuron."""
    again_s: float = 25e-6
    """Added host time of a recomputed operator, whose saved tensors Python looks up."""
    selective_s: float = 0.12e-3
    """Added host time of an operator in a selective checkpoint, which also looks up its result."""
    checkpoint_s: float = 0.2e-3
    """Host time of one checkpoint, without the recomputed operators."""
    reallocated_bytes_per_s: float = 227e9
    """Memory that the allocator returns to the device and takes again: 4.4 ms per GB."""
    origin: str = "assumed for an H200, single precision"

    @classmethod
    def stated(cls, amp: torch.dtype | None) -> DeviceRates:
        """Stated speeds for a precision."""
        if amp is None:
            return cls()
        return cls(350e12, 350e12, origin="assumed for an H200, half precision")


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """Times of a forward pass: measured ones, and the speeds for the rest."""

    rates: DeviceRates
    forward_s: Mapping[str, float] = field(default_factory=dict)
    """Device time of each module, including its children. Empty without a device."""
    host_forward_s: Mapping[str, float] = field(default_factory=dict)
    """Host time of each module."""
    origin: str = "counted"


def measure_times(step: ModelStep, inputs: Sequence[Any], device: torch.device) -> ForwardTimes:
    """Measure the forward pass of each module on a CUDA device, and the link to the host.

    A copy with zeros for weights is run in train mode. Tensors saved for the backward pass are
    dropped, so it takes little memory. The real model is not changed.
    """
    device_s, host_s = _forward_s(step, inputs, device)
    rates = replace(
        DeviceRates.stated(step.amp), link_bytes_per_s=measure_link(device), origin="measured"
    )
    torch.cuda.empty_cache()
    return ForwardTimes(
        rates, device_s, host_s, f"measured on {torch.cuda.get_device_name(device)}"
    )


def _forward_s(
    step: ModelStep, inputs: Sequence[Any], device: torch.device
) -> tuple[dict[str, float], dict[str, float]]:
    """Device and host times of the forward passes of each module: the shortest of some runs."""
    model = step.meta_copy()
    materialize(model, device)
    tensors = real_tensors(tuple(inputs), device)

    def mark() -> tuple[float, torch.cuda.Event]:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return time.perf_counter(), event

    def run() -> float:
        began = time.perf_counter()
        with torch.autocast("cuda", dtype=step.amp or torch.float16, enabled=bool(step.amp)):
            model(*tensors)
        host_s = time.perf_counter() - began
        torch.cuda.synchronize(device)
        return host_s

    device_s: dict[str, float] = {}
    host_s: dict[str, float] = {}
    with torch.cuda.device(device), saved_tensors_hooks(_dropped, _dropped):
        run()  # kernels are loaded and chosen
        plain_s = min(run() for _ in range(N_TIMED))
        spans = record_spans(model, mark)
        for _ in range(N_TIMED):
            spans.clear()
            # With the device busy, events show its own time even where the host is slower.
            torch.cuda._sleep(int(2 * plain_s * CYCLES_PER_S))
            run()
            now: dict[str, tuple[float, float]] = {}
            for path, (first, begin), (last, end) in spans:
                on_device, on_host = now.get(path, (0.0, 0.0))
                seconds = begin.elapsed_time(end) * 1e-3
                now[path] = on_device + seconds, on_host + last - first
            for path, (on_device, on_host) in now.items():
                device_s[path] = min(on_device, device_s.get(path, math.inf))
                host_s[path] = min(on_host, host_s.get(path, math.inf))
    # Recording events takes host time, so host times are scaled to a run without events.
    return device_s, {path: s * plain_s / host_s[""] for path, s in host_s.items()}


def record_spans(model: nn.Module, mark: Callable[[], Any]) -> list[tuple[str, Any, Any]]:
    """List that fills with the path, first mark and last mark of each call of a module."""
    spans: list[tuple[str, Any, Any]] = []
    opened: list[Any] = []

    def leave(path: str) -> Callable[..., None]:
        return lambda *_: spans.append((path, opened.pop(), mark()))

    for path, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_: opened.append(mark()))
        module.register_forward_hook(leave(path))
    return spans


def _dropped(_: Any) -> Any:
    return None


def measure_link(device: torch.device) -> float:
    """Bytes per second to pinned memory, by one copy of 64 MiB."""
    on_device = torch.zeros(2**26, dtype=torch.uint8, device=device)
    on_host = torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
    on_host.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    on_host.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize(device)
    return 2**26 / (time.perf_counter() - began)


BACKWARD, HOST_BACKWARD = 2.0, 1.2
"""Duration of the backward pass relative to the forward pass, on the device and on the host. On the
device, each product of the forward pass has two, for the gradients of inputs and of weights."""


class Flops(NamedTuple):
    """Floating-point operations."""

    convolutions: float = 0.0
    products: float = 0.0

    @property
    def total(self) -> float:
        """Sum of both."""
        return self.convolutions + self.products

    def seconds(self, rates: DeviceRates) -> float:
        """Time on a device."""
        return self.convolutions / rates.convolution_flops_per_s + self.products / rates.flops_per_s


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of a step, and of the forward passes of its modules and ranges."""

    order: ModuleOrder
    device_of: Mapping[str, float]
    """Device time of the forward pass of modules and ranges."""
    host_of: Mapping[str, float]
    """Host time of the forward pass of modules and ranges."""

    @classmethod
    def of(
        cls,
        study: StepStudy,
        order: ModuleOrder,
        flops: Mapping[str, Flops],
        times: ForwardTimes,
    ) -> StepTimes:
        """Times of a step.

        Parameters
        ----------
        study : StepStudy
            Study of the unreduced step.
        order : ModuleOrder
            Order of the model's modules.
        flops : mapping
            Operations of each module.
        times : ForwardTimes
            Measured times, or speeds to estimate them with.
        """
        calls: dict[str, list[ForwardCall]] = {}
        for call in study.calls:
            calls.setdefault(call.path, []).append(call)
        moving = np.zeros(len(study.usage) + 1)
        for storage in study.trace.storages:
            moving[storage.born + 1] += traffic_s(storage, times.rates)
        moving = moving.cumsum()
        device_of, host_of = {}, {}
        for path, its in calls.items():
            inside = order.modules_of(path)
            device_of[path] = sum(times.forward_s.get(each, 0.0) for each in inside)
            host_of[path] = sum(times.host_forward_s.get(each, 0.0) for each in inside)
            if not times.forward_s:
                moved_s = sum(moving[c.end] - moving[c.first] for c in its)
                of_flops = flops_of(flops, path, order).seconds(times.rates)
                device_of[path] = of_flops + moved_s
            if not times.host_forward_s:
                rates = times.rates
                host_of[path] = sum(
                    c.n_operators * rates.launch_s + c.n_in_python * rates.python_s for c in its
                )
        return cls(order, device_of, host_of)

    @property
    def device_s(self) -> float:
        """Device time of the unreduced step."""
        return (1 + BACKWARD) * self.device_of[""]

    @property
    def host_s(self) -> float:
        """Host time of the unreduced step."""
        return (1 + HOST_BACKWARD) * self.host_of[""]

    def step_s(self, chosen: Sequence[Candidate] = ()) -> float:
        """Duration of a step with rewrites."""
        device_s, host_s = self.device_s, self.host_s
        for candidate in chosen:
            n = self._n_around(candidate, chosen)
            host_s += candidate.host_s + n * candidate.wrapped_s
            device_s += candidate.device_s + n * candidate.copied_s
        return float(max(device_s, host_s))

    def added_s(self, chosen: Sequence[Candidate]) -> float:
        """Time that rewrites add to a step."""
        return self.step_s(chosen) - self.step_s()

    def _n_around(self, inner: Candidate, chosen: Sequence[Candidate]) -> int:
        """Number of chosen checkpoints that recompute this candidate."""
        return sum(
            other.rewrite.kind == "checkpoint" and self.order.is_inside(inner.path, other.path)
            for other in chosen
        )


def traffic_s(storage: Storage, rates: DeviceRates) -> float:
    """Time that a device takes to read a result's operands and to write the result."""
    seconds = 3 * storage.n_bytes / rates.bytes_per_s  # two operands of its size, and the result
    if storage.op == "aten::native_batch_norm" and len(storage.shape) > 2 and storage.shape[0] == 1:
        channel_bytes = storage.n_bytes / storage.shape[1]
        return max(seconds, channel_bytes / rates.channel_bytes_per_s)
    return seconds


def flops_of(flops: Mapping[str, Flops], path: str, order: ModuleOrder) -> Flops:
    """Operations of a module, or of the modules of a range."""
    parts = [flops[each] for each in order.modules_of(path) if each in flops]
    return Flops(sum(f.convolutions for f in parts), sum(f.products for f in parts))


HIDDEN_TIME_WEIGHT = 0.2
"""Weight of time that is hidden behind a busy device or host. With 0, the search could choose any
number of hidden rewrites, which together are not hidden. With 1, host and device would count as if
they did not run in parallel."""


def flops_by_module(step: ModelStep, inputs: Sequence[Any]) -> dict[str, Flops]:
    """Floating-point operations of each module's forward pass, children included."""
    with Replay(workspaces=Workspaces.none(), lines=False) as record:
        model = record.model(step.meta_copy(), is_on_meta=True)
        tensors = record.input(tuple(inputs))
        with torch.set_grad_enabled(step.mode != "inference"):
            counted = module_flops(model, lambda: model(*tensors))
    flops = {}
    for path, by_op in counted.items():
        convolutions = sum(n for op, n in by_op.items() if "convolution" in str(op))
        flops[path] = Flops(float(convolutions), float(sum(by_op.values()) - convolutions))
    return flops


def price(
    candidates: Sequence[Candidate],
    of_step: StepTimes,
    flops: Mapping[str, Flops],
    times: ForwardTimes,
) -> None:
    """Set the times of candidates, and `cost_s`."""
    whole_s = max(of_step.step_s(), 1e-9)
    device_busy, host_busy = of_step.device_s / whole_s, of_step.host_s / whole_s
    for candidate in candidates:
        _set_times(candidate, of_step, flops, times)
        added_s = of_step.added_s([candidate])
        hidden_s = max(device_busy * candidate.device_s, host_busy * candidate.host_s) - added_s
        candidate.cost_s = float(added_s + HIDDEN_TIME_WEIGHT * max(hidden_s, 0.0))


def _set_times(
    candidate: Candidate,
    of_step: StepTimes,
    all_flops: Mapping[str, Flops],
    times: ForwardTimes,
) -> None:
    path = candidate.path
    forward_s, host_s = of_step.device_of.get(path, 0.0), of_step.host_of.get(path, 0.0)
    flops = flops_of(all_flops, path, of_step.order)
    rates, kind = times.rates, candidate.rewrite.kind
    moved_s = candidate.recomputed_bytes / rates.bytes_per_s
    again_s = host_s + rates.checkpoint_s + candidate.recomputed_ops * rates.again_s
    if kind == "checkpoint":
        for path in candidate.spared:
            forward_s -= of_step.device_of.get(path, 0.0)
        spared = sum(flops_of(all_flops, path, of_step.order).total for path in candidate.spared)
        candidate.recomputed_flops = flops.total - spared
        candidate.device_s = forward_s
        candidate.wrapped_s = rates.checkpoint_s / 2
        candidate.host_s = again_s
    elif kind == "selective":
        kept_s = flops.seconds(rates)
        if times.forward_s:
            kept_s = sum(times.forward_s.get(p, 0.0) for p in _expensive_inside(candidate, of_step))
        candidate.device_s = max(0.1 * forward_s, forward_s - kept_s)
        candidate.host_s = again_s
        candidate.host_s += candidate.recomputed_ops * rates.selective_s
    else:
        candidate.copied_s = candidate.link_bytes / rates.link_bytes_per_s
        candidate.device_s = moved_s + 2 * candidate.copied_s
        candidate.host_s = candidate.recomputed_ops * rates.launch_s


def _expensive_inside(candidate: Candidate, of_step: StepTimes) -> list[str]:
    """Outermost convolutions and matrix products of a module or range."""
    outermost: list[str] = []
    order = of_step.order
    for path, module in order.modules.items():
        if isinstance(module, EXPENSIVE_LAYERS) and not any(
            path.startswith(p + ".") for p in outermost
        ):
            outermost.append(path)
    own = candidate.path
    return [path for path in outermost if path == own or order.is_inside(path, own)]
