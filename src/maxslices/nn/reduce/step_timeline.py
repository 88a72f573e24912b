"""Duration of a step, in which host and device work at the same time.

A step is a sequence of segments: modules in the forward pass, modules in the backward pass, and
the recomputation that rewrites add before a module's backward pass. The device begins a segment
when the host has launched it and when the segments before are done. So a step takes as long as
the host for some first segments and the device for the rest, for the split where that is
longest: the host counts only where it is behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..replay.trace import Storage
from .candidates import Candidate
from .device_rates import DeviceRates, ForwardTimes
from .module_ranges import ModuleOrder, children_of, range_at
from .module_study import ForwardCall, StepStudy

BACKWARD, HOST_BACKWARD = 2.0, 1.2
"""Backward pass as a multiple of the forward pass, on the device and on the host. On the device it
has two products for each of the forward pass, for the gradients of inputs and of weights."""

Seconds = npt.NDArray[np.float64]


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
class StepTimeline:
    """Segments of a step, in order."""

    order: ModuleOrder
    parts: int
    """Number of parts of the batch, which are run one after the other."""
    backward_start: int
    """Event at which the backward pass begins."""
    device_of: Mapping[str, float]
    """Device time of the forward pass of modules and ranges."""
    host_of: Mapping[str, float]
    """Host time of the forward pass of modules and ranges."""
    at: npt.NDArray[np.int64]
    """(n_segments,): event before which each segment is."""
    device_s: Seconds
    host_s: Seconds

    @classmethod
    def of(
        cls,
        study: StepStudy,
        order: ModuleOrder,
        flops: Mapping[str, Flops],
        times: ForwardTimes,
        parts: int = 1,
    ) -> StepTimeline:
        """Timeline of a step.

        Parameters
        ----------
        study : StepStudy
            Study of the unreduced step, or of one part of its batch.
        order : ModuleOrder
            Order of the model's modules.
        flops : mapping
            Operations of each module's forward pass, of all parts.
        times : ForwardTimes
            Measured times of all parts.
        parts : int
            Number of parts.
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
            device_of[path] = _known(times.forward_s, path, order)
            host_of[path] = _known(times.host_forward_s, path, order)
            if not times.forward_s:
                moved_s = parts * sum(moving[c.end] - moving[c.first] for c in its)
                of_flops = flops_of(flops, path, order).seconds(times.rates)
                device_of[path] = of_flops + moved_s
            if not times.host_forward_s:
                rates = times.rates
                host_of[path] = parts * sum(
                    c.n_operators * rates.launch_s + c.n_in_python * rates.python_s for c in its
                )
        own = {path: np.array((device_of[path], host_of[path])) for path in calls}
        for path in calls:
            around = path
            while around and range_at(path) is None:
                around = around.rpartition(".")[0]
                if around in own:
                    own[around] = own[around] - (device_of[path], host_of[path])
                    break
        segments = []
        for path, its in calls.items():
            if range_at(path) is not None:
                continue
            device_s, host_s = np.maximum(own[path], 0.0) / len(its)
            for call in its:
                segments.append((call.end, device_s, host_s))
                begin = study.begins.get(path, study.backward_start)
                segments.append((begin, BACKWARD * device_s, HOST_BACKWARD * host_s))
        segments.sort()
        at, device, host = (np.array(column) for column in zip(*segments, strict=True))
        return cls(order, parts, study.backward_start, device_of, host_of, at, device, host)

    def step_s(self, chosen: Sequence[Candidate] = ()) -> float:
        """Duration of a step with rewrites."""
        if not chosen:
            return longest(self.host_s, self.device_s)
        at = [max(c.begin, self.backward_start) for c in chosen]
        positions = np.searchsorted(self.at, at)
        around = [self._n_around(c, chosen) for c in chosen]
        host = [c.host_s + n * c.wrapped_s for n, c in zip(around, chosen, strict=True)]
        # Parts of the whole model are already counted in `device_s`.
        more = [max(n - (self.parts > 1), 0) for n in around]
        device = [c.device_s + n * c.copied_s for n, c in zip(more, chosen, strict=True)]
        return longest(
            np.insert(self.host_s, positions, host), np.insert(self.device_s, positions, device)
        )

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


def longest(host_s: Seconds, device_s: Seconds) -> float:
    """Duration of a queue: the host for some first segments, then the device for the rest."""
    if not host_s.size:
        return 0.0
    told = np.cumsum(host_s)
    left = np.cumsum(device_s[::-1])[::-1]
    return float((told + left).max())


def _known(of: Mapping[str, float], path: str, order: ModuleOrder) -> float:
    """Measured time of a module, or of the modules of a range."""
    run = range_at(path)
    if path in of or run is None:
        return of.get(path, 0.0)
    return sum(of.get(each, 0.0) for each in children_of(run, order.modules))


def flops_of(flops: Mapping[str, Flops], path: str, order: ModuleOrder) -> Flops:
    """Operations of a module, or of the modules of a range."""
    run = range_at(path)
    paths = [path] if path in flops or run is None else children_of(run, order.modules)
    known = [flops[each] for each in paths if each in flops]
    return Flops(sum(f.convolutions for f in known), sum(f.products for f in known))
