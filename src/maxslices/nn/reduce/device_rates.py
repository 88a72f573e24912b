"""Speeds of a device and its host: stated for an H200, or measured where there is a device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ..replay import OperatorCall, Trace
from ..replay.meta_copy import materialize
from ..replay.workspaces import CONVOLUTIONS, ITEM_BYTES
from ..step.model_step import ModelStep, real_tensors

N_TIMED = 3
"""Timed forward passes, of which the shortest counts, as a host may be slower for a while."""
CYCLES_PER_S = 2e9
"""Clock of the device, approximately: an H200 runs at up to 1.98 GHz."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Speeds of a device and its host, for predicted times. Stated values are those of an H200."""

    convolution_flops_per_s: float = 110e12
    """Of convolutions, which may round their factors to TF32 by default."""
    flops_per_s: float = 50e12
    """Of matrix products in single precision."""
    bytes_per_s: float = 3.0e12
    """Of the device's memory, reading and writing."""
    channel_bytes_per_s: float = 2.4e9
    """Of one channel that a norm of a single sample writes: one block of threads does it,
    however many channels there are."""
    link_bytes_per_s: float = 55e9
    """Between the device and pinned host memory, in one direction."""
    launch_s: float = 8e-6
    """Host time of one operator."""
    python_s: float = 0.32e-3
    """Host time of an operator that a library defines in Python and that starts kernels itself,
    such as a spiking neuron."""
    again_s: float = 25e-6
    """Added host time of an operator that is recomputed, as Python looks up what it saves."""
    selective_s: float = 0.12e-3
    """Added host time of an operator in a selective checkpoint, which looks up results too."""
    checkpoint_s: float = 0.2e-3
    """Host time of one checkpoint, without the recomputed operators."""
    reallocated_bytes_per_s: float = 227e9
    """Memory that the allocator gives back to the device and takes again, per second: 4.4 ms a
    GB."""
    no_workspace: float = 4.6
    """Time of a convolution whose workspace finds no room, as a multiple of its time with one:
    89 ms for 19.5 ms over the convolutions of ResNet50 and DeepLabV3 (2.1 to 6.0 by kind and
    network); those of ConvNeXt take 1.3 to 1.5 times as long."""
    origin: str = "stated for an H200, single precision"

    @classmethod
    def stated(cls, amp: torch.dtype | None) -> DeviceRates:
        """Stated speeds for a precision."""
        if amp is None:
            return cls()
        return cls(350e12, 350e12, origin="stated for an H200, half precision")

    def convolution_s(self, call: OperatorCall) -> float:
        """Time of a convolution, or of a gradient of one, on the device."""
        x, weight, y = call.shapes
        flops = 2 * max(math.prod(x), math.prod(y)) * math.prod(weight[1:])
        if "transposed" not in call.options:
            flops = 2 * math.prod(y) * math.prod(weight[1:])
        moved = ITEM_BYTES.get(call.dtype, 4) * sum(map(math.prod, call.shapes))
        return flops / self.convolution_flops_per_s + moved / self.bytes_per_s

    def without_workspaces_s(self, trace: Trace, refused: Collection[int]) -> float:
        """Time that a step takes longer as workspaces of some calls find no room.

        cuDNN keeps to the kernels that it takes then, for all calls alike.
        """
        alike = {(trace.calls[i].signature, trace.calls[i].batch) for i in refused}
        last = [mark.event for mark in trace.marks if mark.name == trace.marks[-1].name]
        begin = last[-2] if len(last) > 1 else 0
        slow = [
            trace.calls[which]
            for kind, which in trace.events[begin:]
            if kind == "call" and alike and trace.calls[which].kind in CONVOLUTIONS
        ]
        return (self.no_workspace - 1) * sum(
            self.convolution_s(call) for call in slow if (call.signature, call.batch) in alike
        )


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """Times of a forward pass: measured ones, and the speeds for the rest."""

    rates: DeviceRates
    forward_s: Mapping[str, float] = field(default_factory=dict)
    """Device time of each module, children included; empty without a device."""
    host_forward_s: Mapping[str, float] = field(default_factory=dict)
    """Host time of each module."""
    origin: str = "counted"


def measure_times(
    step: ModelStep, inputs: Sequence[Any], device: torch.device, parts: int = 1
) -> ForwardTimes:
    """Measure the forward pass of each module on a CUDA device, and the link to the host.

    A copy with zeros for weights is run in train mode. Tensors saved for the backward pass are
    dropped, so it takes little memory; the real model is not touched. Given the inputs of one
    of several parts, the times are those of all parts together.
    """
    device_s, host_s = _forward_s(step, inputs, device, parts)
    rates = replace(
        DeviceRates.stated(step.amp), link_bytes_per_s=_link_bytes_per_s(device), origin="measured"
    )
    torch.cuda.empty_cache()
    return ForwardTimes(
        rates, device_s, host_s, f"measured on {torch.cuda.get_device_name(device)}"
    )


def _forward_s(
    step: ModelStep, inputs: Sequence[Any], device: torch.device, parts: int
) -> tuple[dict[str, float], dict[str, float]]:
    model = step.meta_copy()
    materialize(model, device)
    given = real_tensors(tuple(inputs), device)

    def run() -> None:
        with torch.autocast("cuda", dtype=step.amp or torch.float16, enabled=bool(step.amp)):
            model(*given)
        torch.cuda.synchronize(device)

    def event() -> torch.cuda.Event:
        made = torch.cuda.Event(enable_timing=True)
        made.record()
        return made

    with torch.cuda.device(device), saved_tensors_hooks(_dropped, _dropped):
        run()  # kernels are loaded and chosen
        host_s = seconds_by_module(model, run, time.perf_counter, lambda a, b: b - a, parts)

        def run_behind() -> None:
            # The device waits first, or events would show the host's time where that is longer.
            torch.cuda._sleep(int(2 * host_s[""] / parts * CYCLES_PER_S))
            run()

        device_s = seconds_by_module(
            model, run_behind, event, lambda a, b: a.elapsed_time(b) * 1e-3, parts
        )
    return device_s, host_s


def seconds_by_module(
    model: nn.Module,
    run: Callable[[], None],
    mark: Callable[[], Any],
    between: Callable[[Any, Any], float],
    times: int = 1,
) -> dict[str, float]:
    """Measure the forward passes of each module in a run, the shortest of `N_TIMED` runs.

    Parameters
    ----------
    run : callable
        Function that calls the model, and returns when the device is done.
    mark, between : callable
        Function called where a module begins and ends, and one for the seconds between two of
        its results.
    times : int
        Factor of the returned seconds.
    """
    spans: list[tuple[str, Any, Any]] = []
    opened: list[Any] = []

    def enter(_m: nn.Module, _args: Any) -> None:
        opened.append(mark())

    def leave(path: str) -> Callable[..., None]:
        def hook(_m: nn.Module, _args: Any, _made: Any) -> None:
            spans.append((path, opened.pop(), mark()))

        return hook

    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave(path)))
    least: dict[str, float] = {}
    for _ in range(N_TIMED):
        spans.clear()
        run()
        now: dict[str, float] = {}
        for path, first, last in spans:
            now[path] = now.get(path, 0.0) + times * between(first, last)
        least = {path: min(seconds, least.get(path, math.inf)) for path, seconds in now.items()}
    for hook in hooks:
        hook.remove()
    return least


def _dropped(_: Any) -> Any:
    return None


def _link_bytes_per_s(device: torch.device) -> float:
    """Bytes per second to pinned memory, by one copy of 64 MiB."""
    on_device = torch.zeros(2**26, dtype=torch.uint8, device=device)
    on_host = torch.empty(2**26, dtype=torch.uint8, pin_memory=True)
    on_host.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    on_host.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize(device)
    return 2**26 / (time.perf_counter() - began)
