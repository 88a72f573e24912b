"""Values of references that a plan depends on: who asks for them, and what is assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ..errors import PlanError, UnknownReferenceError
from ..pipeline import Pipeline, Reference
from ..planner import Plan

Answer = TypeVar("Answer")


class ValueSource(Protocol):
    """Where the value of a reference comes from that a plan depends on."""

    notes: list[str]
    """Assumptions, for the plan."""

    def find(self, pipeline: Pipeline, error: UnknownReferenceError) -> Pipeline:
        """Return the pipeline planned with the value that an error asks for."""


def answered(
    ask: Callable[[Pipeline], Answer], pipeline: Pipeline, values: ValueSource
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
            pipeline = values.find(pipeline, error)


@dataclass(slots=True)
class DefaultValues:
    """Takes the methods' defaults for values that only a run can find."""

    notes: list[str] = field(default_factory=list)
    """A note on each."""

    def find(self, pipeline: Pipeline, error: UnknownReferenceError) -> Pipeline:
        """Return the pipeline planned with a default.

        Raises
        ------
        UnknownReferenceError
            If the parameter has none.
        """
        step, name, reference = next(
            (step, name, value)
            for step in pipeline.steps
            for name, value in step.parameters.items()
            if value == error.reference and name not in step.planned_values
        )
        default = step.default_of(name)
        if default is None:
            raise error
        self.notes.append(
            f"{step.meta.name}: {name} is {reference}, which a run finds; planned with "
            f"{default!r}, the default, and a run that finds another value refuses this plan"
        )
        return pipeline.with_planned(reference, default)


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
