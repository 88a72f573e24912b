"""A pipeline: methods in order, with their parameters and what refers to what."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ParameterError, PipelineError, UnknownMethodError
from ..method import MethodMeta
from ..parameters import check_parameters, nearest
from ..registry import Registry, registry

_REFERENCE = re.compile(r"\s*\$\{\{\s*([\w-]+)\.side_outputs\.([\w-]+)\s*\}\}\s*")
_STEP_KEYS = ("method", "module_path", "parameters", "save_result", "id", "side_outputs")
LOADER_MODULES = ("httomo.data.hdf.loaders", "maxslices.io")
"""A first step from one of these modules says how the scan is read."""


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
class Step:
    """One method of a pipeline."""

    meta: MethodMeta
    """The method."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the user gives; a value may be a `Reference`."""
    save_result: bool = False
    """Whether the data after this step are kept as a result."""
    id: str | None = None
    """Name by which later steps refer to this one."""
    side_outputs: Mapping[str, str] = field(default_factory=dict)
    """Side result of the method -> name for references."""

    @property
    def references(self) -> tuple[Reference, ...]:
        """Return the references among the parameters."""
        return tuple(v for v in self.parameters.values() if isinstance(v, Reference))

    def known_parameters(self) -> dict[str, Any]:
        """Return the parameters whose values are known before anything has run."""
        return {k: v for k, v in self.parameters.items() if not isinstance(v, Reference)}


@dataclass(frozen=True, slots=True)
class RawStep:
    """A step as a user wrote it, not yet checked."""

    content: Mapping[str, Any]
    """Keys method, module_path, parameters, save_result, id, side_outputs."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Key, or ``parameters.<name>`` -> where it stands, such as ``"pipeline.yaml:12"``."""

    def place(self, *keys: str) -> str | None:
        """Return where the first of `keys` that has a place stands, else the step."""
        return next((self.places[k] for k in (*keys, "") if k in self.places), None)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Methods in order, checked: each is registered and has parameters of its types."""

    steps: tuple[Step, ...]
    """The methods, first to last."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the loader step, empty if there is none."""
    name: str = "pipeline"
    """For messages: the file's name."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], methods: Registry = registry) -> Pipeline:
        """Read a YAML pipeline file in httomo's form.

        Raises
        ------
        PipelineError
            If the file is missing or not well formed; each fault with its line.
        """
        from .pipeline_file import read_pipeline_file

        raw = read_pipeline_file(path)
        return cls._build(raw, methods, os.path.basename(path))

    @classmethod
    def from_steps(
        cls, steps: Iterable[str | Mapping[str, Any]], methods: Registry = registry
    ) -> Pipeline:
        """Make a pipeline of mappings with a pipeline file's keys, or of plain names.

        Examples
        --------
        >>> Pipeline.from_steps(["minus_log", {"method": "median_filter",
        ...                      "parameters": {"kernel_size": 5}}])  # doctest: +SKIP
        """
        raw = []
        for number, step in enumerate(steps, start=1):
            content = {"method": step} if isinstance(step, str) else step
            raw.append(RawStep(content, {"": f"step {number}"}))
        return cls._build(raw, methods, "pipeline")

    @classmethod
    def _build(cls, raw: list[RawStep], methods: Registry, name: str) -> Pipeline:
        faults: list[PipelineError] = []
        loader: Mapping[str, Any] = {}
        if raw and _is_loader(raw[0].content):
            loader = raw[0].content.get("parameters") or {}
            raw = raw[1:]
        if not raw:
            raise PipelineError("it has no methods", name)
        steps: list[Step] = []
        offered: dict[str, set[str]] = {}
        for index, entry in enumerate(raw):
            step = _check_step(entry, methods, offered, index == len(raw) - 1, faults)
            if step is None:
                continue
            steps.append(step)
            if step.id is not None:
                offered[step.id] = set(step.side_outputs.values())
        if len(faults) == 1:
            raise faults[0]
        if faults:
            lines = "\n".join(f"  {fault}" for fault in faults)
            raise PipelineError(f"{len(faults)} faults:\n{lines}", name)
        return cls(tuple(steps), loader, name)

    def __str__(self) -> str:
        return " -> ".join(step.meta.name for step in self.steps)


def _is_loader(content: Mapping[str, Any]) -> bool:
    return content.get("module_path") in LOADER_MODULES or (
        content.get("method") == "standard_tomo" and "module_path" not in content
    )


def _check_step(
    entry: RawStep,
    methods: Registry,
    offered: Mapping[str, set[str]],
    is_last: bool,
    faults: list[PipelineError],
) -> Step | None:
    """Make a `Step`, or add to `faults` what is wrong with it."""
    content = entry.content
    n_before = len(faults)
    for key in content:
        if key not in _STEP_KEYS:
            hint = nearest(str(key), _STEP_KEYS) or f"; a step has {', '.join(_STEP_KEYS)}"
            faults.append(PipelineError(f"unknown key {key!r}{hint}", entry.place(str(key))))
    method_name = content.get("method")
    if not isinstance(method_name, str):
        missing = "a step needs the key 'method'"
        faults.append(PipelineError(missing, entry.place("method")))
        return None
    try:
        meta = methods.get(method_name, content.get("module_path"))
    except UnknownMethodError as error:
        faults.append(PipelineError(str(error), entry.place("method")))
        return None
    parameters = content.get("parameters")
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, Mapping):
        text = f"{meta.name}: parameters must be a mapping of names to values, not {parameters!r}"
        faults.append(PipelineError(text, entry.place("parameters")))
        return None
    values = {str(name): _reference_or_value(value) for name, value in parameters.items()}
    for name, value in values.items():
        if isinstance(value, Reference):
            _check_reference(meta.name, name, value, offered, entry, faults)
    known = {k: v for k, v in values.items() if not isinstance(v, Reference)}
    referred = tuple(k for k in values if k not in known)
    faults.extend(
        ParameterError(
            f"{meta.name} has no parameter {k!r}{nearest(k, meta.parameters)}",
            entry.place(f"parameters.{k}"),
        )
        for k in referred
        if k not in meta.parameters
    )
    for faulty, text in check_parameters(meta.function, known, (*meta.supplied, *referred)):
        place = entry.place(f"parameters.{faulty}" if faulty else "method")
        faults.append(ParameterError(f"{meta.name} {text}", place))
    side_outputs = content.get("side_outputs") or {}
    if isinstance(side_outputs, Mapping):
        for result in side_outputs:
            if result not in meta.side_results:
                has = ", ".join(meta.side_results) or "none"
                text = f"{meta.name} has no side result {result!r}; it has: {has}"
                faults.append(PipelineError(text, entry.place("side_outputs")))
    else:
        text = f"{meta.name}: side_outputs must map side results to names, not {side_outputs!r}"
        faults.append(PipelineError(text, entry.place("side_outputs")))
    save_result = content.get("save_result", is_last)
    if not isinstance(save_result, bool):
        text = f"{meta.name}: save_result must be true or false, not {save_result!r}"
        faults.append(PipelineError(text, entry.place("save_result")))
    step_id = content.get("id")
    if step_id is not None and (not isinstance(step_id, str) or step_id in offered):
        text = f"{meta.name}: id must be a name of its own, not {step_id!r}"
        faults.append(PipelineError(text, entry.place("id")))
    if len(faults) > n_before:
        return None
    return Step(meta, values, save_result, step_id, dict(side_outputs))


def _reference_or_value(value: Any) -> Any:
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return Reference(match[1], match[2]) if match else value


def _check_reference(
    method_name: str,
    parameter: str,
    reference: Reference,
    offered: Mapping[str, set[str]],
    entry: RawStep,
    faults: list[PipelineError],
) -> None:
    where = entry.place(f"parameters.{parameter}")
    if reference.step_id not in offered:
        hint = nearest(reference.step_id, offered) or "; no earlier step has that id"
        text = f"{method_name}: {parameter} refers to the step {reference.step_id!r}{hint}"
        faults.append(PipelineError(text, where))
    elif reference.name not in offered[reference.step_id]:
        has = ", ".join(sorted(offered[reference.step_id])) or "none"
        text = (
            f"{method_name}: {parameter} refers to {reference.name!r} of the step "
            f"{reference.step_id!r}, whose side_outputs are: {has}"
        )
        faults.append(PipelineError(text, where))
