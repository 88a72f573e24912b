"""A pipeline: checked steps in order, the loader's options, and the sections it is cut into."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.method_meta import MethodMeta
from ..core.method_registry import Registry, registry
from ..errors import PipelineError
from ..io import LoaderOptions, Preview
from ..io.scans.chosen_part import PartLike, preview_words, with_choice
from ..system.plain_records import plain
from .check_steps import check_steps, is_loader
from .steps import RawStep, Reference, Step, TextPlace, raise_faults


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Checked steps in order. Each is a registered method with valid parameters."""

    steps: tuple[Step, ...]
    """The methods, first to last."""
    loader: LoaderOptions = field(default_factory=LoaderOptions)
    """Options of the loader step: how the scan is read."""
    name: str = "pipeline"
    """Name of the file, for messages."""
    loader_given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Parameters of the loader step as the user wrote them."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Likely mistakes, each with its line."""

    def __post_init__(self) -> None:
        wrong = next((step for step in self.steps if not isinstance(step, Step)), None)
        if wrong is not None:
            raise PipelineError(
                f"{wrong!r} is not a checked step: make a pipeline with Pipeline.from_steps([...])"
            )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], methods: Registry = registry) -> Pipeline:
        """Read a YAML pipeline file in httomo's form.

        Raises
        ------
        PipelineError
            If the file is missing or invalid, naming the line of each fault.
        """
        from .yaml_file import read_pipeline_file

        return cls._checked(read_pipeline_file(path), methods, os.path.basename(path))

    @classmethod
    def from_steps(cls, steps: Iterable[StepLike], methods: Registry = registry) -> Pipeline:
        """Make a pipeline from steps.

        Parameters
        ----------
        steps : iterable of steps
            Each is a method, a pair of a method and its parameters, or a mapping with the keys of
            a pipeline file. A method is given by its name, its function, or a `functools.partial`
            of the function with parameters as keywords.
        methods : Registry
            Where names of methods are looked up, and functions without the attribute ``meta``.

        Raises
        ------
        PipelineError
            If it is invalid, naming the step of each fault.

        Examples
        --------
        >>> Pipeline.from_steps(["minus_log", (median_filter, {"kernel_size": 5}),
        ...                      {"method": "fbp", "save_result": True}])  # doctest: +SKIP
        """
        if isinstance(steps, str | Mapping) or not isinstance(steps, Iterable):
            raise PipelineError(
                f"a pipeline must be a file or a list of steps, not {steps!r}: write [step, ...]"
            )
        raw = [
            _raw_step(step, methods, f"step {number}") for number, step in enumerate(steps, start=1)
        ]
        return cls._checked(raw, methods, "pipeline")

    @classmethod
    def _checked(cls, raw: list[RawStep], methods: Registry, name: str) -> Pipeline:
        loader, steps, faults, warned = check_steps(raw, methods)
        raise_faults(faults, name)
        if not steps:
            raise PipelineError("the pipeline has no methods", name)
        written = raw[0].content.get("parameters") if is_loader(raw[0].content) else None
        return cls(tuple(steps), loader, name, written or {}, tuple(map(str, warned)))

    def content(self) -> tuple[dict[str, Any], ...]:
        """The pipeline as plain values: the loader's options, then each step."""
        steps = [
            {
                "method": step.meta.full_name,
                "parameters": plain({**step.parameters, **_sweeps(step)}),
                "save_result": step.save_result,
                "id": step.id,
                "side_outputs": plain(step.side_outputs),
            }
            for step in self.steps
        ]
        return (plain(dataclasses.asdict(self.loader)), *steps)

    def reading(self, chosen: Mapping[str, PartLike | None]) -> Pipeline:
        """Copy of the pipeline for a part of the scan.

        Parameters
        ----------
        chosen : mapping of str to PartLike
            "angles", "rows" and "columns" -> the part, which replaces the pipeline's own.

        Raises
        ------
        UsageError
            If a part is invalid.
        """
        if all(part is None for part in chosen.values()):
            return self
        return self.with_preview(with_choice(self.loader.preview, chosen))

    def with_preview(self, preview: Preview) -> Pipeline:
        """Copy of the pipeline for the part of a scan that a preview selects."""
        kept = {k: v for k, v in self.loader_given.items() if k != "continuous_scan_subset"}
        return dataclasses.replace(
            self,
            loader=dataclasses.replace(self.loader, preview=preview),
            loader_given={**kept, "preview": preview_words(preview)},
        )

    def with_planned(self, reference: Reference, value: Any) -> Pipeline:
        """Copy of the pipeline, planned with a value for a reference."""
        steps = tuple(step.with_planned(reference, value) for step in self.steps)
        return dataclasses.replace(self, steps=steps)

    def finding(self, reference: Reference) -> Pipeline | None:
        """The steps that are needed to find the value of a reference, without saving data.

        Steps with side results are omitted unless one of these steps refers to them. None if one
        of the steps is swept.
        """
        wanted = {reference.step_id}
        steps: list[Step] = []
        for step in reversed(self.steps):
            is_after = not steps and step.id != reference.step_id
            if is_after or (step.meta.side_results and step.id not in wanted):
                continue
            if step.sweeps:
                return None
            wanted |= {each.step_id for each in step.references}
            steps.append(dataclasses.replace(step, save_result=False))
        return dataclasses.replace(self, steps=tuple(reversed(steps)))

    def saving_all(self) -> Pipeline:
        """Copy of the pipeline that saves the data after every step."""
        steps = (dataclasses.replace(s, save_result=not s.meta.side_results) for s in self.steps)
        return dataclasses.replace(self, steps=tuple(steps))

    @property
    def result_index(self) -> int | None:
        """Index of the last step that makes data, or None."""
        making = [i for i, step in enumerate(self.steps) if not step.meta.side_results]
        return making[-1] if making else None

    def __str__(self) -> str:
        return " -> ".join(step.meta.name for step in self.steps)


MethodLike = str | Callable[..., Any] | MethodMeta
"""A method: its name, its function, or a `functools.partial` of the function."""
StepLike = MethodLike | tuple[MethodLike, Mapping[str, Any]] | Mapping[str, Any]
"""A step: a method, (method, parameters), or a mapping with the keys of a pipeline file."""


def _raw_step(step: StepLike, methods: Registry, where: str) -> RawStep:
    """Convert a step of any form to a mapping with the keys of a pipeline file."""
    if isinstance(step, tuple) and len(step) == 2 and isinstance(step[1], Mapping):
        content: dict[str, Any] = {"method": step[0], "parameters": dict(step[1])}
    else:
        content = dict(step) if isinstance(step, Mapping) else {"method": step}
    named = content.get("method")
    meta = None if isinstance(named, str) else _meta_of(named, methods)
    if meta is None and isinstance(named, functools.partial):
        if named.args:
            raise PipelineError(
                f"{named!r} has positional arguments: pass the parameters of a step by name",
                where,
            )
        content["parameters"] = {**named.keywords, **(content.get("parameters") or {})}
        named = named.func
        meta = _meta_of(named, methods)
    if meta is not None:
        content |= {"method": meta.name, "module_path": meta.module}
    elif callable(named):
        raise PipelineError(
            f"{named!r} is not a registered method: decorate it with @maxslices.method, or "
            "register it with maxslices.registry.register",
            where,
        )
    elif not isinstance(named, str) and not isinstance(step, Mapping):
        raise PipelineError(
            "a step must be a method (its name or its function), (method, parameters) or a mapping "
            f"with the key 'method', not {step!r}",
            where,
        )
    return RawStep(content, {"": TextPlace(where)}, meta=meta)


def _meta_of(function: Any, methods: Registry) -> MethodMeta | None:
    """Record of a method's function; None if it is not registered."""
    meta = getattr(function, "meta", function)
    if isinstance(meta, MethodMeta):
        return meta
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    if name in methods:  # a function of another package, which is registered with a wrapper
        return methods.get(name)
    return next((each for each in methods if each.function is function), None)


def _sweeps(step: Step) -> dict[str, Any]:
    return {name: {"sweep": list(sweep.values)} for name, sweep in step.sweeps.items()}


PipelineLike = Pipeline | str | os.PathLike[str] | Iterable[StepLike]
"""A pipeline, its YAML file, or steps as for `Pipeline.from_steps`."""


def as_pipeline(pipeline: PipelineLike) -> Pipeline:
    """Make a `Pipeline` of any `PipelineLike`."""
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, str | os.PathLike):
        return Pipeline.from_file(pipeline)
    return Pipeline.from_steps(pipeline)


@dataclass(slots=True)
class Section:
    """Consecutive methods that run on a block without leaving the device."""

    slice_dims: tuple[int, ...]
    """Axes along which blocks can be cut for all of its methods, the preferred one first."""
    steps: list[Step] = field(default_factory=list)
    """The methods, in order."""
    halo: tuple[int, int] = (0, 0)
    """Slices (before, after) that are added to a block."""

    @property
    def slice_dim(self) -> int:
        """Axis along which its blocks are cut."""
        return self.slice_dims[0]


def cut_into_sections(pipeline: Pipeline, *, reads_rows: bool = True) -> list[Section]:
    """Cut a pipeline into sections, as httomo does with one exception.

    Parameters
    ----------
    pipeline : Pipeline
        The methods.
    reads_rows : bool
        Whether rows of the scan can be read without whole frames. Methods for slices along either
        axis then share a section with the sinogram methods after them, and nothing is transposed.

    Returns
    -------
    list of Section

    Notes
    -----
    A new section starts

    * if the pattern changes,
    * at a second method with a halo, because the halo of a block serves one method,
    * at a reference to a side result that depends on all data of the section.

    The exception: a side result that depends on a few slices is found before the first block, so no
    section starts at a reference to it. A section that can be cut along either axis is cut as the
    previous one. The first section is cut into projections, if possible, when rows of the scan
    cannot be read without whole frames, or when its data are saved as images.
    """
    sections: list[Section] = []
    pending: set[str] = set()
    for step in pipeline.steps:
        halo = step.meta.halo_slices(**step.known_parameters())
        shared: tuple[int, ...] = ()
        if sections:
            shared = tuple(dim for dim in sections[-1].slice_dims if dim in step.meta.slice_dims())
            if sections[-1].slice_dim not in shared and _stays(sections, reads_rows):
                shared = ()
        needs_all = any(reference.step_id in pending for reference in step.references)
        if not shared or needs_all or (any(halo) and any(sections[-1].halo)):
            sections.append(Section(_as_before(step.meta.slice_dims(), sections)))
            pending = set()
        else:
            sections[-1].slice_dims = shared
        sections[-1].steps.append(step)
        if any(halo):
            sections[-1].halo = halo
        if step.id is not None and step.meta.side_results and step.meta.sample_slices is None:
            pending.add(step.id)
    return sections


def _stays(sections: list[Section], reads_rows: bool) -> bool:
    """True if the last section keeps its preferred axis, whatever follows it."""
    is_first = len(sections) == 1
    return (is_first and not reads_rows) or any(step.save_result for step in sections[-1].steps)


def _as_before(slice_dims: tuple[int, ...], sections: list[Section]) -> tuple[int, ...]:
    """Axes, starting with the one of the previous section if possible."""
    if sections and sections[-1].slice_dim in slice_dims:
        return tuple(sorted(slice_dims, key=lambda dim: dim != sections[-1].slice_dim))
    return slice_dims
