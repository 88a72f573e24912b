"""Steps of a pipeline, as a user wrote them and checked, with their references and sweeps."""

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
    """Where something stands in what a user wrote."""

    where: str | None
    """File, line and column, such as ``"pipeline.yaml:12:5"``, or the number of a step."""
    pointer: str = ""
    """The line and a mark below; empty if it is not known."""

    def fault(self, text: str, kind: type[PipelineError] = PipelineError) -> PipelineError:
        """Error for what is wrong here."""
        return kind(text, self.where, self.pointer)


def raise_faults(faults: Iterable[PipelineError], name: str) -> None:
    """Raise the faults of a pipeline as one error, if there are any."""
    faults = sorted(faults, key=_line_of)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        lines = "\n".join(f"  {fault}".replace("\n", "\n  ") for fault in faults)
        raise PipelineError(f"{len(faults)} faults:\n{lines}", name)


def _line_of(fault: PipelineError) -> tuple[int, int]:
    """Line and column of a fault in a file, to sort by; (0, 0) if it has none."""
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
    """A parameter that is given several values, one after the other."""

    values: tuple[Any, ...]
    """The values, in order."""
    place: TextPlace = field(default_factory=lambda: TextPlace(None), compare=False)
    """Where it stands in a file."""

    def __str__(self) -> str:
        return f"sweep of {len(self.values)} values"


@dataclass(frozen=True, slots=True)
class Step:
    """One method of a pipeline, checked."""

    meta: MethodMeta
    """The method."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The user's parameters; a value may be a `Reference`."""
    save_result: bool = False
    """Whether the data after this step are kept as a result."""
    id: str | None = None
    """Name by which later steps refer to this one."""
    side_outputs: Mapping[str, str] = field(default_factory=dict)
    """Side result of the method -> name for references."""
    planned_values: Mapping[str, Any] = field(default_factory=dict)
    """Parameter -> value of its reference, as far as a plan depends on it: found, or assumed,
    before the plan is made."""

    @property
    def references(self) -> tuple[Reference, ...]:
        """References among the parameters."""
        return tuple(v for v in self.parameters.values() if isinstance(v, Reference))

    @property
    def sweeps(self) -> dict[str, Sweep]:
        """Parameters that are swept."""
        return {name: v for name, v in self.parameters.items() if isinstance(v, Sweep)}

    def with_known(self, known: Mapping[tuple[str, str], Any]) -> Step:
        """Step with references replaced, as far as (step id, name) are among what is known."""
        found = {
            name: known.get((value.step_id, value.name), value)
            if isinstance(value, Reference)
            else value
            for name, value in self.parameters.items()
        }
        return replace(self, parameters=found)

    def with_planned(self, reference: Reference, value: Any) -> Step:
        """Step that is planned with a value for the parameters with a reference."""
        given = {name: value for name, each in self.parameters.items() if each == reference}
        return replace(self, planned_values={**self.planned_values, **given}) if given else self

    def known_parameters(self) -> dict[str, Any]:
        """Parameters for the method's declarations, before anything has run.

        A sweep is replaced by its first value. A reference is replaced by its planned value, or
        by an `UnknownValue`, which raises `UnknownReferenceError` as soon as a declaration uses it.
        """
        known: dict[str, Any] = {}
        for name, value in self.parameters.items():
            known[name] = value.values[0] if isinstance(value, Sweep) else value
            if name in self.planned_values:
                known[name] = self.planned_values[name]
            elif isinstance(value, Reference):
                known[name] = UnknownValue(str(value), self._needed_error(name, value))
        return known

    def measured_parameters(self) -> dict[str, Any]:
        """Parameters with which the method is measured before anything has run.

        A reference is replaced by the method's default, or by None without one: a measurement
        is recorded by its parameters, and serves for the values of many runs.
        """
        known = self.known_parameters()
        return {
            name: self.default_of(name) if isinstance(value, UnknownValue) else value
            for name, value in known.items()
        }

    def default_of(self, name: str) -> Any:
        """Default of a parameter; None without one."""
        parameter = self.meta.parameters.get(name)
        is_given = parameter is not None and parameter.default is not parameter.empty
        return parameter.default if parameter is not None and is_given else None

    def _needed_error(self, name: str, reference: Reference) -> Callable[[], Exception]:
        """Make the error of a reference on whose value a plan depends."""
        text = (
            f"{self.meta.name}: {name} is {reference}, which only a run can find, and the plan "
            f"depends on it: give {name} a value"
        )
        place = reference.place
        return lambda: UnknownReferenceError(text, place.where, place.pointer, reference)


@dataclass(frozen=True, slots=True)
class RawStep:
    """A step as a user wrote it, not yet checked."""

    content: Mapping[str, Any]
    """Keys method, module_path, parameters, save_result, id, side_outputs."""
    places: Mapping[str, TextPlace] = field(default_factory=dict)
    """Key, or keys within keys as in ``parameters.preview.angles`` -> where it stands."""
    meta: MethodMeta | None = None
    """The method, where the step names it by its function; None: it is looked up by its name."""

    def fault(
        self, text: str, key: str = "", kind: type[PipelineError] = PipelineError
    ) -> PipelineError:
        """Make the error for what stands under a key, or nearest above it."""
        return self.place(key).fault(text, kind)

    def place(self, key: str = "") -> TextPlace:
        """Position of a key, or of the nearest one above it."""
        while key not in self.places and key:
            key = key.rpartition(".")[0]
        return self.places.get(key, TextPlace(None))


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
