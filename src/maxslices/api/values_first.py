"""Values of references that a plan depends on: who asks for them, and what is assumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..errors import PlanError, UnknownReferenceError
from ..pipeline import Pipeline, Reference
from ..planner import Plan

Answer = TypeVar("Answer")


FindValue = Callable[[Pipeline, UnknownReferenceError], Pipeline]
"""Returns the pipeline planned with the value that an error asks for."""


def answered(
    ask: Callable[[Pipeline], Answer], pipeline: Pipeline, find: FindValue
) -> tuple[Answer, Pipeline]:
    """Ask about a pipeline, again with each value that the answer turns out to depend on.

    Returns
    -------
    (Answer, Pipeline)
        The answer, and the pipeline planned with those values.
    """
    while True:
        try:
            return ask(pipeline), pipeline
        except UnknownReferenceError as error:
            pipeline = find(pipeline, error)


def with_default(pipeline: Pipeline, error: UnknownReferenceError) -> Pipeline:
    """Return the pipeline planned with the method's default for a value that only a run can find.

    Raises
    ------
    UnknownReferenceError
        If the parameter has none.
    """
    default = next(
        step.default_of(name)
        for step in pipeline.steps
        for name, value in step.parameters.items()
        if value == error.reference and name not in step.planned_values
    )
    if default is None:
        raise error
    return pipeline.with_planned(error.reference, default)


def assumed_values(pipeline: Pipeline) -> list[str]:
    """Notes on the defaults that a pipeline is planned with; see `with_default`."""
    return [
        f"{step.meta.name}: {name} is {step.parameters[name]}, which a run finds; planned with "
        f"{value!r}, the default, and a run that finds another value refuses this plan"
        for step in pipeline.steps
        for name, value in step.planned_values.items()
    ]


def as_planned(pipeline: Pipeline, plan: Plan) -> Pipeline:
    """Pipeline with the values that a plan was made with, in place of references.

    Raises
    ------
    PlanError
        If the plan names a parameter that is not a reference.
    """
    planned = [step for section in plan.sections for step in section.steps]
    for step, each in zip(pipeline.steps, planned, strict=False):
        for name, value in each.planned_values.items():
            reference = step.parameters.get(name)
            if not isinstance(reference, Reference):
                raise PlanError(
                    f"the plan has a value for {name} of {step.meta.name}, which is not a "
                    "reference: plan again"
                )
            pipeline = pipeline.with_planned(reference, value)
    return pipeline
