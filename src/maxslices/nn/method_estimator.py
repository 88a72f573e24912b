"""Memory models of torch methods, from replays without data: no device is needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from ..core.arrays import ArraySpec, block_shape
from ..core.memory_model import MemoryModel
from ..core.method_meta import MethodMeta
from ..estimate.model_request import ModelRequest, ResolvedModel
from ..trial.made_up import facts
from .replay import Replay, Spec, StepFamily, Trace, TraceError, Workspaces
from .replay.measure_workspaces import measured_workspaces

FAMILY_AT = (2, 3, 5)
"""Numbers of slices that are replayed besides 1. Two give the lines, the third confirms them."""

_Result = tuple[tuple[int, ...], str] | None
"""Shape and dtype of a method's result for one slice, or None if it is not a tensor."""

_LOOKED_BACK = 8
"""Numbers and rungs over whose maximum the model runs, as it must not decrease."""


class Traced:
    """Method that was replayed at a few numbers of slices.

    Attributes
    ----------
    family : StepFamily
        Trace for any number of slices.
    workspaces : Workspaces
        Memory that libraries take in addition to tensors, with its source.
    notes : tuple of str
        Parts that were not replayed exactly.
    output_dtype : str or None
        Dtype of the result, or None if it is not an array.
    output_dims : (int, int) or None
        The result's other two dims, or None if it is not an array of as many slices.
    """

    def __init__(
        self, family: StepFamily, workspaces: Workspaces, slice_dim: int, result: _Result
    ) -> None:
        self.family = family
        self.workspaces = workspaces
        self.notes = family.trace(1).notes
        self.output_dtype, self.output_dims = None, None
        if result is not None:
            shape, self.output_dtype = result
            if len(shape) == 3 and shape[slice_dim] == 1:
                rows, columns = (n for axis, n in enumerate(shape) if axis != slice_dim)
                self.output_dims = rows, columns

    def model(self) -> MemoryModel:
        """Memory that torch's allocator needs for n slices, see `Trace.needed_bytes`."""
        kept = sum(workspace.n_bytes for workspace in self.family.trace(1).kept_workspaces())

        @cache
        def at_rung(rung: int) -> int:
            # Fewer slices may need more, as blocks have other sizes. A model never decreases, so it
            # takes the maximum over the numbers and rungs before.
            before = set(range(max(1, rung - _LOOKED_BACK), rung + 1))
            while rung > 1 and len(before) < 2 * _LOOKED_BACK:
                rung = _rung(rung - 1)
                before.add(rung)
            return max(self.family.needed_bytes(n) for n in before)

        return MemoryModel(lambda n: at_rung(_rung(n + _step(n) - 1)), lambda n: kept)

    def __str__(self) -> str:
        lines = "" if self.family.is_linear else ", each number of slices by itself"
        return f"replayed without data{lines}, workspaces {self.workspaces.origin}"


def _step(rung: int) -> int:
    """Distance of rungs at a number: 1 below 128, then 1 / 64 of an octave."""
    return int(max(1, 2 ** (rung.bit_length() - 7)))


def _rung(n: int) -> int:
    """Largest rung up to n. The allocator is simulated at rungs only."""
    return n // _step(n) * _step(n)


def trace_method(
    request: ModelRequest, supplied: Mapping[str, ArraySpec], device: str
) -> ResolvedModel:
    """Memory model of a torch method, as `maxslices.estimate.model_resolver.MethodTracer`."""
    traced = replay_method(request, supplied, device)
    dtype = None if traced.output_dtype is None else np.dtype(traced.output_dtype)
    why = "; ".join([str(traced), *traced.notes])
    return ResolvedModel(traced.model(), "replayed", why, dtype, traced.output_dims)


def replay_method(
    request: ModelRequest,
    supplied: Mapping[str, ArraySpec],
    device: str = "",
    workspaces: Workspaces | None = None,
) -> Traced:
    """Replay a torch method at a few numbers of slices.

    Parameters
    ----------
    request : ModelRequest
        A method with ``array_module="torch"``, its input and the user's parameters.
    supplied : mapping
        Flats and darks, which the planner counts.
    device : str
        Device on which unknown workspaces are measured, such as "cuda:0".
    workspaces : Workspaces, optional
        The default is those of `device`, or `Workspaces.allowance`.

    Raises
    ------
    TraceError
        If the method cannot be replayed without data. The message names the line.
    """
    meta, slice_dim = request.meta, request.slice_dim
    element = getattr(torch, str(request.dtype), None)
    if not isinstance(element, torch.dtype):
        raise TraceError(f"{meta.full_name}: torch has no tensors of {request.dtype}")

    seen: dict[int, _Result] = {}

    used_workspaces = Workspaces.allowance() if workspaces is None else workspaces

    def make(n_slices: int) -> Trace:
        shape = block_shape(slice_dim, n_slices, request.other_dims)
        with Replay(workspaces=used_workspaces) as record:
            side = record.input(_side(meta, shape, supplied), is_counted=False)
            side |= facts(meta, slice_dim)
            data = record.input(Spec(shape, element))
            with torch.no_grad(), record.stage("call", "activations"):
                result = meta.function(data, **{**side, **request.parameters})
            is_array = isinstance(result, torch.Tensor)
            kind = str(result.dtype).removeprefix("torch.") if is_array else ""
            seen[n_slices] = (tuple(result.shape), kind) if is_array else None
            del result
        return record.trace()

    try:
        family = StepFamily(make, FAMILY_AT)
        family.trace(1)
        if workspaces is None and device and torch.cuda.is_available():
            used_workspaces, _ = measured_workspaces(
                family.calls(FAMILY_AT[0]), torch.device(device)
            )
            family = family.with_workspaces(used_workspaces)
        return Traced(family, used_workspaces, slice_dim, seen[1])
    except TraceError as error:
        raise type(error)(f"{meta.full_name}: {error}") from error


def _side(meta: MethodMeta, shape: tuple[int, ...], supplied: Mapping[str, Any]) -> dict[str, Any]:
    """Side data of a block: specs for flats and darks, real angles."""
    import torch

    from .replay import Spec

    side: dict[str, Any] = {}
    for name in ("flats", "darks"):
        if name in meta.supplied:
            frames_spec = supplied.get(name)
            frames, kind = (10, "uint16")
            if isinstance(frames_spec, ArraySpec):
                frames, kind = frames_spec.shape[0], str(frames_spec.dtype)
            side[name] = Spec((frames, *shape[1:]), getattr(torch, kind))
    if "angles" in meta.supplied:
        side["angles"] = np.linspace(0, np.pi, shape[0], endpoint=False, dtype=np.float32)
    return side
