"""Steps of a pipeline: as a user wrote them, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.method_meta import MethodMeta
from ..errors import PipelineError


@dataclass(frozen=True, slots=True)
class Reference:
    """A parameter whose value is a side result of an earlier step."""

    step_id: str
    """``id`` of that step."""
    name: str
    """Name under its ``side_outputs``."""

    def __str__(self) -> str:
        return f"${{{{{self.step_id}.side_outputs.{self.name}}}}}"


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Where something stands in what a user wrote."""

    where: str | None
    """File, line and column, such as ``"pipeline.yaml:12:5"``, or the number of a step."""
    pointer: str = ""
    """The line and a mark below; empty if it is not known."""


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

    def known_parameters(self) -> dict[str, Any]:
        """Parameters as far as they are known before anything has run.

        A reference is replaced by the method's default, or by None if there is none; a sweep by
        its first value.
        """
        known = {
            name: value.values[0] if isinstance(value, Sweep) else value
            for name, value in self.parameters.items()
        }
        for name, value in self.parameters.items():
            if isinstance(value, Reference):
                default = self.meta.parameters[name].default
                known[name] = None if default is self.meta.parameters[name].empty else default
        return known


@dataclass(frozen=True, slots=True)
class RawStep:
    """A step as a user wrote it, not yet checked."""

    content: Mapping[str, Any]
    """Keys method, module_path, parameters, save_result, id, side_outputs."""
    places: Mapping[str, TextPlace] = field(default_factory=dict)
    """Key, or keys within keys as in ``parameters.preview.angles`` -> where it stands."""
    faulty: frozenset[str] = frozenset()
    """Keys, and ``parameters.<name>``, without a readable value; they are not in `content`."""
    meta: MethodMeta | None = None
    """The method, where the step names it by its function; None: it is looked up by its name."""

    def fault(
        self, text: str, key: str = "", kind: type[PipelineError] = PipelineError
    ) -> PipelineError:
        """Make the error for what stands under a key, or nearest above it."""
        while key not in self.places and key:
            key = key.rpartition(".")[0]
        place = self.places.get(key, TextPlace(None))
        return kind(text, place.where, place.pointer)
