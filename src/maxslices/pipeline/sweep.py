"""Sweeps: several values of one parameter of one step, and the few rows that they need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.parameters import nearest
from ..errors import ParameterError, PipelineError, UsageError
from .pipeline import Pipeline
from .steps import Step, Sweep, sweep_fault, sweep_list, sweep_range

LEFT_OUT = ("calculate_stats", "rescale_to_int", "save_to_images")
"""Methods that a sweep omits, as httomo does. They prepare and save a whole volume, but a sweep
saves one picture for each value."""


SweepLike = str | Mapping[str, Iterable[Any] | slice]
"""A sweep as ``"fbp.center=203:208:0.5"`` or ``{"fbp.center": values}``."""
_HOW = "write STEP.PARAMETER=START:STOP:STEP, or =[VALUE, VALUE, ...]"


def with_sweep(pipeline: Pipeline, sweep: SweepLike) -> Pipeline:
    """Replace the value of a parameter in a pipeline by a sweep.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline. If it has a sweep of the same parameter, that is replaced.
    sweep : str or mapping
        The id of a step or the name of its method, the parameter, and its values:
        ``"fbp.center=203:208:0.5"`` (without the stop), ``"fbp.center=[203, 204.5]"``, or a
        mapping of one such name to values.

    Raises
    ------
    UsageError
        If the text is invalid, or the step does not exist.
    PipelineError
        If the parameter cannot be swept, or a value is refused.
    """
    name, values = _read(sweep)
    target, _, parameter = name.rpartition(".")
    if not target or not parameter.isidentifier():
        raise UsageError(f"{name!r} is not a parameter of a step: {_HOW}")
    index = _step_index(pipeline, target)
    swept = dataclasses.replace(
        pipeline.steps[index],
        parameters={**pipeline.steps[index].parameters, parameter: values},
    )
    if fault := sweep_fault(swept, parameter):
        raise ParameterError(fault, f"sweep of {name}")
    steps = list(pipeline.steps)
    steps[index] = swept
    swept_already = [
        f"{step.meta.name}.{key}"
        for number, step in enumerate(steps)
        for key in step.sweeps
        if (number, key) != (index, parameter)
    ]
    if swept_already:
        raise PipelineError(
            f"the pipeline already sweeps {swept_already[0]}: sweep one parameter in a run, and "
            "give the other one a single value",
            f"sweep of {name}",
        )
    return dataclasses.replace(pipeline, steps=tuple(steps))


def _read(sweep: SweepLike) -> tuple[str, Sweep]:
    if isinstance(sweep, Mapping):
        if len(sweep) != 1:
            raise UsageError(f"a sweep needs one parameter, not {len(sweep)}")
        ((name, values),) = sweep.items()
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is not a parameter of a step: write it like 'fbp.center'")
        if isinstance(values, slice):
            return name, sweep_range(values.start, values.stop, values.step)
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UsageError(f"the values of a sweep must be a list, not {values!r}")
        return name, sweep_list(values)
    if not isinstance(sweep, str):
        raise UsageError(f"a sweep must be text or a mapping of one name, not {sweep!r}")
    name, equals, text = sweep.partition("=")
    if not equals or not text.strip():
        raise UsageError(f"{sweep!r} is not a sweep: {_HOW}")
    return name.strip(), _read_values(text.strip(), sweep)


def _read_values(text: str, whole: str) -> Sweep:
    from .yaml_values import read_value

    try:
        if not text.startswith("[") and ":" in text:
            parts = [read_value(part, whole) for part in text.split(":")]
            if len(parts) != 3:
                raise UsageError(f"{whole!r} is not a sweep: {_HOW}")
            return sweep_range(*parts)
        values = read_value(text if text.startswith("[") else f"[{text}]", whole)
    except PipelineError as error:
        raise UsageError(f"{error}: {_HOW}") from None
    return sweep_list(values)


def _step_index(pipeline: Pipeline, target: str) -> int:
    by_id = [i for i, step in enumerate(pipeline.steps) if step.id == target]
    by_name = [i for i, step in enumerate(pipeline.steps) if step.meta.name == target]
    matching = by_id or by_name
    if len(matching) > 1:
        raise UsageError(
            f"{len(matching)} steps are called {target}: give one of them an id, and use the id"
        )
    if not matching:
        names = {step.meta.name for step in pipeline.steps}
        names |= {step.id for step in pipeline.steps if step.id}
        hint = nearest(target, names) or f"; the steps are {', '.join(sorted(names))}"
        raise UsageError(f"the pipeline has no step {target!r}{hint}")
    return matching[0]


@dataclass(frozen=True, slots=True)
class SweptPipeline:
    """A pipeline with a sweep, cut before the step that is swept."""

    before: Pipeline | None
    """The steps that run once, or None."""
    swept: Pipeline
    """The swept step and all steps after it."""
    parameter: str
    """The swept parameter of the first of these steps."""
    sweep: Sweep
    """Its values."""
    left_out: tuple[str, ...]
    """Names of the methods that are omitted."""

    @property
    def name(self) -> str:
        """The parameter as users write it, such as ``fbp.center``."""
        return f"{self.swept.steps[0].meta.name}.{self.parameter}"

    def with_value(self, value: Any, side_results: Mapping[tuple[str, str], Any]) -> Pipeline:
        """Steps for one value, with references to earlier steps replaced by side results."""
        first, *rest = self.swept.steps
        first = dataclasses.replace(first, parameters={**first.parameters, self.parameter: value})
        steps = tuple(step.with_side_results(side_results) for step in (first, *rest))
        return dataclasses.replace(self.swept, steps=steps)


def cut_at_sweep(pipeline: Pipeline) -> SweptPipeline | None:
    """Cut a pipeline before the swept step; None without a sweep."""
    swept = next((i for i, step in enumerate(pipeline.steps) if step.sweeps), None)
    if swept is None:
        return None
    kept = [
        step
        for i, step in enumerate(pipeline.steps)
        if i <= swept or step.meta.name not in LEFT_OUT
    ]
    left_out = [step.meta.name for step in pipeline.steps if step not in kept]
    # Only the picture of each value is saved, and no data between steps.
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


USUAL_ROWS = 5
"""Least rows that a sweep reads, as in httomo, for methods that process several rows together and
for centre finders that average rows."""


@dataclass(frozen=True, slots=True)
class SweepRows:
    """Rows around the middle of a scan, the same number on either side."""

    start: int
    """First row, counted from the first row of the loader's preview."""
    stop: int
    """Row after the last."""
    middle: int
    """The row of the pictures."""
    why: tuple[str, ...]
    """Reasons for the number of rows, in words."""
    elsewhere: tuple[int, ...] = ()
    """Indices of steps whose side results depend on other rows."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def rows_of_sweep(cut: SweptPipeline, n_rows: int) -> SweepRows:
    """Choose the rows that the pictures of a sweep depend on.

    The pictures show the middle row of the scan. The rows are evenly around the middle, so a method
    that selects the middle row finds the same row as in a run on all rows.

    Parameters
    ----------
    cut : SweptPipeline
        The pipeline.
    n_rows : int
        Number of rows of the scan.
    """
    before = cut.before.steps if cut.before is not None else ()
    reached = reach_after(cut)
    for step in before:
        reached[step.meta.name] = reached.get(step.meta.name, 0) + _reach(step)
    total = sum(reached.values())
    why = [f"{rows} on either side for {name}" for name, rows in reached.items() if rows]
    half = max(total + 1, USUAL_ROWS // 2)
    rows = _around_middle(half, n_rows)
    elsewhere = []
    for index, step in enumerate(before):
        if step.meta.sample_slices is None:
            continue
        wanted = step.meta.sampled_range(n_rows, **step.known_parameters())
        need = max(n_rows // 2 - wanted.start, wanted.stop - n_rows // 2)
        if need > half and need - half <= USUAL_ROWS:  # a mean of some more rows
            half, rows = need, _around_middle(need, n_rows)
            why.append(f"{len(wanted)} for {step.meta.name}")
        if not _is_seen(step, wanted, rows):
            elsewhere.append(index)
    if not why:
        why = ["the usual minimum"]
    if rows == (0, n_rows):
        why.append("all rows of the scan")
    return SweepRows(*rows, n_rows // 2, tuple(why), tuple(elsewhere))


def reach_after(cut: SweptPipeline) -> dict[str, int]:
    """Rows on either side that the swept step and later steps need, by method."""
    swept, *after = cut.swept.steps
    reached = {swept.meta.name: _farthest(cut, cut.sweep.values)}
    for step in after:
        reached[step.meta.name] = reached.get(step.meta.name, 0) + _reach(step)
    return reached


def _farthest(cut: SweptPipeline, values: Iterable[object]) -> int:
    return max(_reach(cut.with_value(value, {}).steps[0]) for value in values)


def _reach(step: Step) -> int:
    return step.meta.rows_reached(**step.known_parameters())


def _around_middle(half: int, n_rows: int) -> tuple[int, int]:
    """Rows evenly around the middle. Their number is even if the number of all rows is."""
    start = max(0, n_rows // 2 - half)
    return start, n_rows - start


def _is_seen(step: Step, wanted: range, rows: tuple[int, int]) -> bool:
    """True if a step samples the same rows when it receives these rows only."""
    start, stop = rows
    if not start <= wanted.start <= wanted.stop <= stop:
        return False
    seen = step.meta.sampled_range(stop - start, **step.known_parameters())
    return range(seen.start + start, seen.stop + start) == wanted
