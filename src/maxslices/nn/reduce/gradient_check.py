"""Comparison of a rewritten step with the unreduced step, on small inputs.

Results, gradients and the whole state dict must be equal to the bit, or in double precision equal
except for rounding.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...system.process_state import HostDraws
from ..nn_errors import ModelArgumentError, first_line
from ..replay import Replay, Spec, TraceError, Workspaces
from ..replay.nested import map_leaves, tensors_in
from ..replay.object_copies import iter_contents
from ..step.call_inputs import is_sized
from ..step.layer_state import reset_states
from ..step.model_step import ModelStep, placed
from .rewrite import Rewrite, Rewrites, apply_rewrites

EXACT = 1e-10
"""Largest error in double precision, relative to the largest number of a tensor. Rounding gives up
to 1e-12 in docs/benchmarks/reductions.md, and a buffer that is updated twice 1e-3 or more."""
ROUNDING = 1e-14
"""Largest error of a tensor, relative to the largest gradient. The gradient of a bias before a norm
consists of rounding errors only."""
SHRINKS = (8, 4, 2, 1)
"""Divisors of the images' axes, tried in turn."""
SMALLEST = 16
"""Smallest size of an axis that is divided. Networks that halve an axis four times need it."""
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError, NotImplementedError)


class StepDifference(NamedTuple):
    """Tensor that differs most between two steps."""

    name: str
    """Result, gradient or buffer."""
    error: float
    """Difference, relative to the largest number of that tensor."""
    failure: str = ""
    """Message of the error, if the rewritten step did not run."""

    def __str__(self) -> str:
        return self.failure or f"{self.name} differs by {self.error:.1g} of its largest number"


@dataclass(slots=True)
class GradientCheck:
    """Comparison of rewritten steps of one model with its unreduced step."""

    step: ModelStep
    inputs: Sequence[Any]
    check_s: float = 0.0
    """Time taken so far."""
    _references: dict[Any, dict[str, torch.Tensor]] = field(default_factory=dict)
    _small: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """Small inputs by number of samples."""

    def difference(self, rewrites: Rewrites) -> StepDifference | None:
        """Largest difference from the unreduced step; None if the steps are equal.

        Raises
        ------
        ModelArgumentError
            If the unreduced model does not run.
        """
        began = time.perf_counter()
        parts = max((r.parts for r in rewrites.values()), default=1)
        inputs = self._inputs(parts)
        largest = self._compared(rewrites, inputs, double=False)
        if largest is not None and not largest.failure:
            largest = self._compared(rewrites, inputs, double=True)
        self.check_s += time.perf_counter() - began
        return largest

    def culprits(self, rewrites: Mapping[str, Rewrite]) -> dict[str, StepDifference]:
        """Rewrites, by path, that make the step differ in addition to those before them."""
        culprits: dict[str, StepDifference] = {}
        fine: dict[str, Rewrite] = {}
        for path, rewrite in rewrites.items():
            error = self.difference({**fine, path: rewrite})
            if error is None:
                fine[path] = rewrite
            else:
                culprits[path] = error
        return culprits

    def _inputs(self, parts: int) -> tuple[Any, ...]:
        """Smallest inputs on which the model runs."""
        n = max(parts, 2)
        last: BaseException | None = None
        for candidate in () if n in self._small else small_inputs(self.step.model, self.inputs, n):
            try:
                with Replay(workspaces=Workspaces.none(), lines=False) as record:
                    record.model(self.step.meta_copy(), is_on_meta=True)(*record.input(candidate))
                self._reference(candidate, False)
            except (*_ERRORS, TraceError) as error:
                last = error
            else:
                self._small[n] = candidate
                break
        if n in self._small:
            return self._small[n]
        raise ModelArgumentError(
            f"{type(self.step.model).__name__} does not run on small inputs of that kind, so no "
            f"plan can be compared with it: {first_line(last)}"
        ) from last

    def _compared(
        self, rewrites: Rewrites, inputs: tuple[Any, ...], double: bool
    ) -> StepDifference | None:
        try:
            whole = self._reference(inputs, double)
            model = self._copied(double)
            apply_rewrites(model, rewrites)
            reduced = self._ran(model, inputs, double)
        except _ERRORS as error:
            text = first_line(error)
            precision = " in double precision" if double else ""
            return StepDifference("", math.inf, f"it does not run{precision}: {text}")
        most = max(
            (_size(t) for name, t in whole.items() if name.startswith("gradient")), default=0.0
        )
        worst: StepDifference | None = None
        for name in {**whole, **reduced}:
            # A gradient that is None counts as zeros.
            other = whole[name] if name in whole else reduced[name]
            expected, its = (each.get(name, torch.zeros_like(other)) for each in (whole, reduced))
            off = _error(expected, its, ROUNDING * most / EXACT if double else 0.0)
            if off > (EXACT if double else 0.0) and (worst is None or off > worst.error):
                worst = StepDifference(name, off)
        return worst

    def _reference(self, inputs: tuple[Any, ...], double: bool) -> dict[str, torch.Tensor]:
        key = str(inputs), double
        if key not in self._references:
            self._references[key] = self._ran(self._copied(double), inputs, double)
        return self._references[key]

    def _copied(self, double: bool) -> nn.Module:
        return self.step.prepared(real_copy(self.step.model, double))

    def _ran(
        self, model: nn.Module, inputs: tuple[Any, ...], double: bool
    ) -> dict[str, torch.Tensor]:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        generator = torch.Generator().manual_seed(1)
        arguments = placed(inputs, device)
        arguments = map_leaves(
            lambda i: _real(i, generator, double, device) if isinstance(i, Spec) else i, arguments
        )
        cuda = [device] if device.type == "cuda" else []
        amp = self.step.amp if not double else None
        casting: AbstractContextManager[Any] = nullcontext()
        if amp is not None:
            casting = torch.autocast(device.type, dtype=amp)
        with (
            torch.random.fork_rng(devices=cuda),
            HostDraws().again(),
            torch.autograd.set_multithreading_enabled(False),
        ):
            torch.manual_seed(2)
            random.seed(2)
            np.random.seed(2)  # noqa: NPY002 - modules draw from this generator
            with casting:
                output = model(*arguments)
            results = tensors_in(output)
            # A random weight for each item, as the sum of a softmax has no gradient.
            weights = [torch.randn(t.shape, generator=generator).to(t) for t in results]
            wanted = [
                (t, w) for t, w in zip(results, weights, strict=True)
                if t.requires_grad and t.is_floating_point()
            ]  # fmt: skip
            torch.autograd.backward([t for t, _ in wanted], [w for _, w in wanted])
        tensors = {f"result {i}": t.detach() for i, t in enumerate(results)}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                tensors[f"gradient of {name}"] = parameter.grad
        for i, t in enumerate(tensors_in(arguments)):
            if t.grad is not None:
                tensors[f"gradient of input {i}"] = t.grad
        state = model.state_dict()
        tensors |= {f"buffer {n}": t for n, t in state.items() if torch.is_tensor(t)}
        return tensors


def real_copy(model: nn.Module, double: bool = False) -> nn.Module:
    """Copy a model, with its states reset and random numbers in weights without data."""
    generator = torch.Generator().manual_seed(0)
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        dtype = torch.float64 if double and tensor.is_floating_point() else tensor.dtype
        if tensor.is_meta:
            clone = _invented(tensor, generator).to(dtype)
        else:
            clone = tensor.detach().to(dtype, copy=True)
        if isinstance(tensor, nn.Parameter):
            clone = nn.Parameter(clone, tensor.requires_grad)
        memo[id(tensor)] = clone
    for module in model.modules():
        for tensor in iter_contents([*vars(module).values()]):
            # Tensors that a module has kept of an earlier step are part of that step's graph.
            if torch.is_tensor(tensor) and id(tensor) not in memo:
                memo[id(tensor)] = tensor.detach().clone()
    copied = copy.deepcopy(model, memo)
    reset_states(copied)
    return copied.double() if double else copied


def small_inputs(model: nn.Module, inputs: Sequence[Any], n: int) -> Iterator[tuple[Any, ...]]:
    """Yield inputs with n samples and, first, images of an eighth of their sides."""
    has_time = any(getattr(m, "step_mode", "") == "m" for m in model.modules())
    most = 10**9
    seen: set[str] = set()
    for samples, shrink in (*((n, shrink) for shrink in SHRINKS), (most, 1)):

        def small(item: Any, samples: int = samples, shrink: int = shrink) -> Any:
            return _small(item, samples, shrink, has_time) if is_sized(item) else item

        shrunk = map_leaves(small, tuple(inputs))
        if str(shrunk) not in seen:
            seen.add(str(shrunk))
            yield shrunk


def _small(item: Any, n: int, shrink: int, has_time: bool) -> Any:
    if torch.is_tensor(item):  # of integers, whose values count
        return item[:n] if item.dim() else item
    dtype, shape = item.dtype, list(item.shape)
    # The first axes are samples and channels, or time, samples and channels. Texts have no
    # channels.
    n_first = 3 if has_time else 2 if dtype.is_floating_point else 1
    for axis, size in enumerate(shape):
        if axis == 0 or (has_time and axis == 1):
            shape[axis] = min(size, n)
        elif axis >= n_first and size > SMALLEST:
            shape[axis] = max(SMALLEST, size // shrink)
    return Spec(tuple(shape), dtype, item.requires_grad)


def _real(
    item: Spec, generator: torch.Generator, double: bool, device: torch.device
) -> torch.Tensor:
    if not item.dtype.is_floating_point:
        return torch.randint(0, 2, item.shape, generator=generator).to(device, item.dtype)
    numbers = torch.randn(item.shape, generator=generator, dtype=torch.float64)
    dtype = torch.float64 if double else item.dtype
    return numbers.to(device, dtype).requires_grad_(item.requires_grad)


def _invented(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random numbers of a usual size for a weight without data."""
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    if tensor.dim() < 2:  # scales of norms, and variances
        return torch.rand(tensor.shape, generator=generator) + 0.5
    fan_in = math.prod(tensor.shape[1:])
    return torch.randn(tensor.shape, generator=generator) / math.sqrt(fan_in)


def _size(tensor: torch.Tensor) -> float:
    if not tensor.numel() or not tensor.is_floating_point():
        return 0.0
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max())


def _error(expected: torch.Tensor, actual: torch.Tensor, least: float) -> float:
    """Largest difference, relative to the largest number; infinite where only one is finite."""
    if expected.shape != actual.shape:
        return math.inf
    if torch.equal(expected, actual) or not expected.numel():
        return 0.0
    a, b = expected.double(), actual.double()
    strange = ~(a.isfinite() & b.isfinite())
    if bool((strange & ~((a == b) | (a.isnan() & b.isnan()))).any()):
        return math.inf
    off = float((a - b).masked_fill(strange, 0.0).abs().max())
    scale = _size(a) + least
    return off / scale if scale else math.inf if off else 0.0
