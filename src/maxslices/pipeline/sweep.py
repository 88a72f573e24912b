"""Sweeps: one parameter of one step with several values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.parameters import nearest
from ..errors import ParameterError, PipelineError, UsageError
from .pipeline import Pipeline
from .steps import Sweep
from .sweep_values import sweep_fault, sweep_list, sweep_range

LEFT_OUT = ("calculate_stats", "rescale_to_int", "save_to_images")
"""Methods that a sweep leaves out, as httomo does: they prepare and save a whole volume, and a
sweep saves the picture of each value itself."""


SweepLike = str | Mapping[str, Iterable[Any] | slice]
"""A sweep as ``"fbp.center=203:208:0.5"``, or ``{"fbp.center": values}``."""
_HOW = "write STEP.PARAMETER=START:STOP:STEP, or =[VALUE, VALUE, ...]"


def with_sweep(pipeline: Pipeline, sweep: SweepLike) -> Pipeline:
    """Replace a parameter of a pipeline by a sweep.

    Parameters
    ----------
    pipeline : Pipeline
        Checked; it may have a sweep of the same parameter, which is replaced.
    sweep : str or mapping
        The id of a step, or the name of its method, with the parameter, and its values:
        ``"fbp.center=203:208:0.5"`` (the stop excluded), ``"fbp.center=[203, 204.5]"``, or a
        mapping of one such name to values.

    Raises
    ------
    UsageError
        If it is not written like that, or there is no such step.
    PipelineError
        If the parameter cannot be swept, or a value is refused.
    """
    name, found = _read(sweep)
    target, _, parameter = name.rpartition(".")
    if not target or not parameter.isidentifier():
        raise UsageError(f"{name!r} is no parameter of a step: {_HOW}")
    index = _step_index(pipeline, target)
    swept = dataclasses.replace(
        pipeline.steps[index],
        parameters={**pipeline.steps[index].parameters, parameter: found},
    )
    if fault := sweep_fault(swept, parameter):
        raise ParameterError(fault, f"sweep of {name}")
    steps = list(pipeline.steps)
    steps[index] = swept
    others = [
        f"{step.meta.name}.{key}"
        for number, step in enumerate(steps)
        for key in step.sweeps
        if (number, key) != (index, parameter)
    ]
    if others:
        raise PipelineError(
            f"the pipeline sweeps {others[0]} already: sweep one parameter a run, and give the "
            "other one value",
            f"sweep of {name}",
        )
    return dataclasses.replace(pipeline, steps=tuple(steps))


def _read(sweep: SweepLike) -> tuple[str, Sweep]:
    if isinstance(sweep, Mapping):
        if len(sweep) != 1:
            raise UsageError(f"a sweep is of one parameter, not {len(sweep)}")
        ((name, values),) = sweep.items()
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is no parameter of a step: name it as 'fbp.center'")
        if isinstance(values, slice):
            return name, sweep_range(values.start, values.stop, values.step)
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UsageError(f"the values of a sweep are a list, not {values!r}")
        return name, sweep_list(values)
    if not isinstance(sweep, str):
        raise UsageError(f"a sweep is text or a mapping of one name to values, not {sweep!r}")
    name, equals, text = sweep.partition("=")
    if not equals or not text.strip():
        raise UsageError(f"{sweep!r} is no sweep: {_HOW}")
    return name.strip(), _read_values(text.strip(), sweep)


def _read_values(text: str, whole: str) -> Sweep:
    from .yaml_values import read_value

    try:
        if not text.startswith("[") and ":" in text:
            parts = [read_value(part, whole) for part in text.split(":")]
            if len(parts) != 3:
                raise UsageError(f"{whole!r} is no sweep: {_HOW}")
            return sweep_range(*parts)
        values = read_value(text if text.startswith("[") else f"[{text}]", whole)
    except PipelineError as error:
        raise UsageError(f"{error}: {_HOW}") from None
    return sweep_list(values)


def _step_index(pipeline: Pipeline, target: str) -> int:
    by_id = [i for i, step in enumerate(pipeline.steps) if step.id == target]
    by_name = [i for i, step in enumerate(pipeline.steps) if step.meta.name == target]
    found = by_id or by_name
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} steps are called {target}: give the one that is meant an id, and name "
            "that"
        )
    if not found:
        names = {step.meta.name for step in pipeline.steps}
        names |= {step.id for step in pipeline.steps if step.id}
        hint = nearest(target, names) or f"; the steps are {', '.join(sorted(names))}"
        raise UsageError(f"the pipeline has no step {target!r}{hint}")
    return found[0]


@dataclass(frozen=True, slots=True)
class SweptPipeline:
    """A pipeline with a sweep, cut before the step that is swept."""

    before: Pipeline | None
    """The steps that run once; None if there are none."""
    swept: Pipeline
    """The step that is swept, and those after it."""
    parameter: str
    """The parameter of the first of these."""
    sweep: Sweep
    """Its values."""
    left_out: tuple[str, ...]
    """Names of methods that a sweep leaves out."""

    @property
    def name(self) -> str:
        """The parameter as a user names it, such as ``fbp.center``."""
        return f"{self.swept.steps[0].meta.name}.{self.parameter}"

    def with_value(self, value: Any, known: Mapping[tuple[str, str], Any]) -> Pipeline:
        """Steps for one value, with references to the steps before replaced by what is known."""
        first, *rest = self.swept.steps
        first = dataclasses.replace(first, parameters={**first.parameters, self.parameter: value})
        steps = tuple(step.with_known(known) for step in (first, *rest))
        return dataclasses.replace(self.swept, steps=steps)


def cut_at_sweep(pipeline: Pipeline) -> SweptPipeline | None:
    """Cut a pipeline before the step that is swept; None without one."""
    swept = next((i for i, step in enumerate(pipeline.steps) if step.sweeps), None)
    if swept is None:
        return None
    kept = [
        step
        for i, step in enumerate(pipeline.steps)
        if i <= swept or step.meta.name not in LEFT_OUT
    ]
    left_out = [step.meta.name for step in pipeline.steps if step not in kept]
    # Nothing is saved on the way: the picture of each value is.
    steps = [dataclasses.replace(step, save_result=False) for step in kept]
    makes_data = [i for i, step in enumerate(steps) if not step.meta.side_results]
    ((parameter, sweep),) = steps[swept].sweeps.items()
    before = steps[:swept]
    if any(i < swept for i in makes_data):
        last = max(i for i in makes_data if i < swept)
        before[last] = dataclasses.replace(before[last], save_result=True)
    steps[makes_data[-1]] = dataclasses.replace(steps[makes_data[-1]], save_result=True)
    return SweptPipeline(
        dataclasses.replace(pipeline, steps=tuple(before)) if before else None,
        dataclasses.replace(pipeline, steps=tuple(steps[swept:])),
        parameter,
        sweep,
        tuple(left_out),
    )
