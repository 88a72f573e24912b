"""Sweeps: one parameter of one step with several values, and the few rows that are read."""

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


USUAL_ROWS = 5
"""Rows that a sweep reads at least, as httomo does: methods that work on rows together are then
given some, and centre finders may average."""


@dataclass(frozen=True, slots=True)
class SweepRows:
    """Rows in the middle of a scan, the same number on either side."""

    start: int
    """First row, counted from the first that the loader's preview leaves."""
    stop: int
    """Row after the last."""
    middle: int
    """The row whose pictures are made."""
    why: tuple[str, ...]
    """Reasons for their number, in words."""
    elsewhere: tuple[int, ...] = ()
    """Steps whose side results depend on other rows, by their index."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def rows_of_sweep(cut: SweptPipeline, n_rows: int) -> SweepRows:
    """Choose the rows that the pictures of a sweep depend on.

    The middle row of the pictures is the middle row of the scan, and the rows lie evenly around
    the scan's middle, so that what "the middle" means to a method is the same row as in a run on
    all rows.

    Parameters
    ----------
    cut : SweptPipeline
        The pipeline.
    n_rows : int
        Rows of the scan.
    """
    before = cut.before.steps if cut.before is not None else ()
    reached = reach_after(cut)
    for step in before:
        reached[step.meta.name] = reached.get(step.meta.name, 0) + _reach(step)
    total = sum(reached.values())
    why = [f"{rows} on either side for {name}" for name, rows in reached.items() if rows]
    half = max(total + 1, USUAL_ROWS // 2)
    found = _around_middle(half, n_rows)
    elsewhere = []
    for index, step in enumerate(before):
        if step.meta.sample_slices is None:
            continue
        wanted = step.meta.looked_at(n_rows, **step.known_parameters())
        need = max(n_rows // 2 - wanted.start, wanted.stop - n_rows // 2)
        if need > half and need - half <= USUAL_ROWS:  # a mean of some more rows
            half, found = need, _around_middle(need, n_rows)
            why.append(f"{len(wanted)} for {step.meta.name}")
        if not _is_seen(step, wanted, found):
            elsewhere.append(index)
    if not why:
        why = ["as few as methods are usually given"]
    if found == (0, n_rows):
        why.append("all that there are")
    return SweepRows(*found, n_rows // 2, tuple(why), tuple(elsewhere))


def reach_after(cut: SweptPipeline) -> dict[str, int]:
    """Rows on either side that the swept step and those after it need, by method."""
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
    """Rows evenly around the middle of all: an even number of them if all are even."""
    start = max(0, n_rows // 2 - half)
    return start, n_rows - start


def _is_seen(step: Step, wanted: range, rows: tuple[int, int]) -> bool:
    """True if a step that is given these rows alone looks at the same ones as given all."""
    start, stop = rows
    if not start <= wanted.start <= wanted.stop <= stop:
        return False
    seen = step.meta.looked_at(stop - start, **step.known_parameters())
    return range(seen.start + start, seen.stop + start) == wanted
