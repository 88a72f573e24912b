"""Steps of a pipeline, as the user wrote them and checked, with references and sweeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..core.author_code import UnknownValue
from ..core.method_meta import MethodMeta
from ..core.parameters import check_parameters, matches, nearest
from ..errors import PipelineError, UnknownReferenceError, UsageError


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A position in the text that a user wrote."""

    where: str | None
    """File, line and column, such as ``"pipeline.yaml:12:5"``, or the number of a step."""
    pointer: str = ""
    """The line and a mark below it, or an empty string."""

    def fault(self, text: str, kind: type[PipelineError] = PipelineError) -> PipelineError:
        """Error for a fault at this position."""
        return kind(text, self.where, self.pointer)


def raise_faults(faults: Iterable[PipelineError], name: str) -> None:
    """Raise the faults of a pipeline as one error, if any."""
    faults = sorted(faults, key=_line_of)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        lines = "\n".join(f"  {fault}".replace("\n", "\n  ") for fault in faults)
        raise PipelineError(f"{len(faults)} faults:\n{lines}", name)


def _line_of(fault: PipelineError) -> tuple[int, int]:
    """Line and column of a fault in a file for sorting, or (0, 0)."""
    numbers = (fault.where or "").split(":")[-2:]
    return (int(numbers[0]), int(numbers[1])) if all(map(str.isdecimal, numbers)) else (0, 0)


@dataclass(frozen=True, slots=True)
class Reference:
    """A parameter whose value is a side result of an earlier step."""

    step_id: str
    """``id`` of that step."""
    name: str
    """Name under its ``side_outputs``."""
    place: TextPlace = field(default_factory=lambda: TextPlace(None), compare=False)
    """Its position in a file."""

    def __str__(self) -> str:
        return f"${{{{{self.step_id}.side_outputs.{self.name}}}}}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A parameter with several values, one for each run."""

    values: tuple[Any, ...]
    """The values, in order."""
    place: TextPlace = field(default_factory=lambda: TextPlace(None), compare=False)
    """Its position in a file."""

    def __str__(self) -> str:
        return f"sweep of {len(self.values)} values"


@dataclass(frozen=True, slots=True)
class Step:
    """A checked step: one method of a pipeline."""

    meta: MethodMeta
    """The method."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The user's parameters. A value may be a `Reference` or a `Sweep`."""
    save_result: bool = False
    """Whether the data after this step are saved as a result."""
    id: str | None = None
    """Name by which later steps refer to this one."""
    side_outputs: Mapping[str, str] = field(default_factory=dict)
    """Side result of the method -> name for references."""
    planned_values: Mapping[str, Any] = field(default_factory=dict)
    """Parameter -> value of its reference, if the plan depends on it. The value is computed or
    assumed before planning."""

    @property
    def references(self) -> tuple[Reference, ...]:
        """References among the parameters."""
        return tuple(v for v in self.parameters.values() if isinstance(v, Reference))

    @property
    def sweeps(self) -> dict[str, Sweep]:
        """Parameters that are swept."""
        return {name: v for name, v in self.parameters.items() if isinstance(v, Sweep)}

    def with_side_results(self, values: Mapping[tuple[str, str], Any]) -> Step:
        """Copy of the step in which references are replaced by the values of (step id, name)."""
        parameters = {
            name: values.get((value.step_id, value.name), value)
            if isinstance(value, Reference)
            else value
            for name, value in self.parameters.items()
        }
        return replace(self, parameters=parameters)

    def with_planned(self, reference: Reference, value: Any) -> Step:
        """Copy of the step that is planned with a value for a reference."""
        new = {name: value for name, each in self.parameters.items() if each == reference}
        return replace(self, planned_values={**self.planned_values, **new}) if new else self

    def known_parameters(self) -> dict[str, Any]:
        """Parameters for the method's declarations, before any step has run.

        A sweep is replaced by its first value. A reference is replaced by its planned value, or by
        an `UnknownValue`, which raises `UnknownReferenceError` when a declaration uses it.
        """
        parameters: dict[str, Any] = {}
        for name, value in self.parameters.items():
            parameters[name] = value.values[0] if isinstance(value, Sweep) else value
            if name in self.planned_values:
                parameters[name] = self.planned_values[name]
            elif isinstance(value, Reference):
                parameters[name] = UnknownValue(str(value), self._needed_error(name, value))
        return parameters

    def measured_parameters(self) -> dict[str, Any]:
        """Parameters with which the method is measured before any step has run.

        A reference is replaced by the parameter's default, or None. A measurement is recorded for
        these parameters, and can then be used for many runs with different values.
        """
        return {
            name: self.default_of(name) if isinstance(value, UnknownValue) else value
            for name, value in self.known_parameters().items()
        }

    def default_of(self, name: str) -> Any:
        """Default of a parameter, or None."""
        parameter = self.meta.parameters.get(name)
        if parameter is None or parameter.default is parameter.empty:
            return None
        return parameter.default

    def _needed_error(self, name: str, reference: Reference) -> Callable[[], Exception]:
        """Function that makes the error for a plan that depends on a reference."""
        text = (
            f"{self.meta.name}: {name} is {reference}, which is known only during a run, but the "
            f"plan depends on it: give {name} a value"
        )
        place = reference.place
        return lambda: UnknownReferenceError(text, place.where, place.pointer, reference)


@dataclass(frozen=True, slots=True)
class RawStep:
    """A step as the user wrote it, not yet checked."""

    content: Mapping[str, Any]
    """Keys method, module_path, parameters, save_result, id, side_outputs."""
    places: Mapping[str, TextPlace] = field(default_factory=dict)
    """Key, or nested keys such as ``parameters.preview.angles`` -> position."""
    meta: MethodMeta | None = None
    """The method if the step contains its function; None if it is looked up by its name."""

    def fault(
        self, text: str, key: str = "", kind: type[PipelineError] = PipelineError
    ) -> PipelineError:
        """Make the error for the value of a key, or of the nearest key above it."""
        return self.place(key).fault(text, kind)

    def place(self, key: str = "") -> TextPlace:
        """Position of a key, or of the nearest one above it."""
        while key not in self.places and key:
            key = key.rpartition(".")[0]
        return self.places.get(key, TextPlace(None))


MAX_SWEEP_VALUES = 10_000
"""Most values of a sweep. Each makes a picture to look at, so more values mean that the step is too
small by mistake."""

_STEP_DIGITS = 9
"""Significant decimals of a number of steps. With 10,000 steps, and ends that are a hundred times
as large as the range, rounding errors reach 1e-11 of a step."""


def sweep_range(start: Any, stop: Any, step: Any) -> Sweep:
    """Make a sweep of equally spaced values as `numpy.arange` does, without `stop`.

    Raises
    ------
    UsageError
        If these are not numbers, or the number of values is 0 or too large.
    """
    for name, value in {"start": start, "stop": stop, "step": step}.items():
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
    """Make a sweep of a list of values.

    Raises
    ------
    UsageError
        If the list is empty or too long.
    """
    plain = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    if not plain:
        raise UsageError("a sweep needs at least one value")
    if len(plain) > MAX_SWEEP_VALUES:
        raise UsageError(f"a sweep has at most {MAX_SWEEP_VALUES:,} values, not {len(plain):,}")
    return Sweep(plain)


def sweep_fault(step: Step, name: str) -> str | None:
    """Fault of the sweep of a parameter, or None."""
    meta, sweep = step.meta, step.sweeps[name]
    if meta.side_results:
        return (
            f"{meta.name}: a sweep needs a method that makes data, but {meta.name} returns only "
            f"{', '.join(meta.side_results)}"
        )
    if name not in meta.parameters and not meta.accepts_any:
        valid = [each for each in meta.parameters if each not in meta.supplied]
        return f"{meta.name} has no parameter {name!r}{nearest(name, valid)}"
    if name in meta.supplied:
        return f"{meta.name}: {name} is supplied during the run, and cannot be swept"
    unchecked = set(meta.parameters) - {name}
    for value in sweep.values:
        for _, text in check_parameters(meta.function, {name: value}, unchecked):
            return f"{meta.name} {text}"
    unknown = {k for k, v in step.parameters.items() if isinstance(v, Reference | Sweep)} - {name}
    plain = {k: v for k, v in step.parameters.items() if k in meta.parameters and k not in unknown}
    for value in sweep.values:
        if refusal := meta.refusal({**plain, name: value}, unknown):
            return f"{meta.name} refuses {name} = {value!r}: {refusal}"
    return None
