"""Values of a sweep: ranges and lists, and whether a step may be swept over them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..core.parameters import check_parameters, matches, nearest
from ..errors import UsageError
from .steps import Reference, Step, Sweep

MAX_SWEEP_VALUES = 10_000
"""Most values of a sweep. Each is a picture that somebody looks at; more are a step that is too
small by mistake."""

_STEP_DIGITS = 9
"""Decimals of a number of steps that count: with 10,000 steps, rounding errors of the ends reach
1e-11 of a step where these are a hundred times as large as the range."""


def sweep_range(start: Any, stop: Any, step: Any) -> Sweep:
    """Make a sweep of equally spaced values as `numpy.arange` does, `stop` always excluded.

    Raises
    ------
    UsageError
        If these are not numbers, or give no values or too many.
    """
    given = {"start": start, "stop": stop, "step": step}
    for name, value in given.items():
        if not matches(float, value) or not np.isfinite(value):
            raise UsageError(f"{name} of a range must be a number, not {value!r}")
    if step == 0:
        raise UsageError("step of a range must not be 0")
    n_values = (stop - start) / step
    shown = f"the range from {start} to {stop} in steps of {step}"
    if n_values <= 0:
        raise UsageError(f"{shown} has no values: stop is excluded")
    if n_values > MAX_SWEEP_VALUES:
        raise UsageError(f"{shown} has more than {MAX_SWEEP_VALUES:,} values: take larger steps")
    # 3.0000000000000004 steps from 1 to 1.3 would include the stop.
    count = max(1, math.ceil(round(n_values, _STEP_DIGITS)))
    return Sweep(tuple(np.arange(start, stop, step)[:count].tolist()))


def sweep_list(values: Iterable[Any]) -> Sweep:
    """Make a sweep of given values.

    Raises
    ------
    UsageError
        If there are none or too many.
    """
    found = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    if not found:
        raise UsageError("a sweep needs at least one value")
    if len(found) > MAX_SWEEP_VALUES:
        raise UsageError(f"a sweep has at most {MAX_SWEEP_VALUES:,} values, not {len(found):,}")
    return Sweep(found)


def sweep_fault(step: Step, name: str) -> str | None:
    """What is wrong with the sweep of a parameter; None if nothing is."""
    meta, sweep = step.meta, step.sweeps[name]
    if meta.side_results:
        return (
            f"{meta.name}: a sweep needs a method that makes data, and {meta.name} finds "
            f"{', '.join(meta.side_results)} alone"
        )
    if name not in meta.parameters and not meta.accepts_any:
        known = [each for each in meta.parameters if each not in meta.supplied]
        return f"{meta.name} has no parameter {name!r}{nearest(name, known)}"
    if name in meta.supplied:
        return f"{meta.name}: {name} is filled in while it runs, and cannot be swept"
    others = set(meta.parameters) - {name}
    for value in sweep.values:
        for _, text in check_parameters(meta.function, {name: value}, others):
            return f"{meta.name} {text}"
    unknown = {k for k, v in step.parameters.items() if isinstance(v, Reference | Sweep)} - {name}
    plain = {k: v for k, v in step.parameters.items() if k in meta.parameters and k not in unknown}
    for value in sweep.values:
        if refusal := meta.refusal({**plain, name: value}, unknown):
            return f"{meta.name} refuses {name} = {value!r}: {refusal}"
    return None
