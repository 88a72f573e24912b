"""Sweeps in pipeline files: httomo's tags ``!Sweep`` and ``!SweepRange``."""

from __future__ import annotations

from typing import Any

import yaml

from ..errors import PipelineError, UsageError
from .steps import RawStep, Sweep
from .sweep_values import sweep_list, sweep_range
from .yaml_values import FAULTY, SWEEP_LIST, SWEEP_RANGE, PlainLoader, place_of


class SweepLoader(PlainLoader):
    """Loader of plain values, and of sweeps among them."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self._file = file
        self._made: list[Sweep] = []
        self._faults: list[PipelineError] = []

    def construct_sweep(self, node: yaml.Node) -> Any:
        """Sweep of a node that `NodeCheck` has seen.

        `FAULTY`, and a fault, if it has no values or too many, or a range is not of numbers.
        """
        place = place_of(self._file, node)
        try:
            if isinstance(node, yaml.SequenceNode):
                values = self.construct_sequence(node, deep=True)
                if FAULTY in values:
                    return FAULTY
                found = sweep_list(values)
            else:
                assert isinstance(node, yaml.MappingNode)
                ends: dict[Any, Any] = self.construct_mapping(node, deep=True)
                if FAULTY in ends.values():
                    return FAULTY
                found = sweep_range(ends["start"], ends["stop"], ends["step"])
        except UsageError as error:
            self._faults.append(PipelineError(str(error), place.where, place.pointer))
            return FAULTY
        sweep = Sweep(found.values, place)
        self._made.append(sweep)
        return sweep

    def faults_in(self, steps: list[RawStep]) -> list[PipelineError]:
        """Faults of the sweeps in steps: each is the whole value of a parameter."""
        parameters = [step.content.get("parameters") for step in steps]
        values = [v for each in parameters if isinstance(each, dict) for v in each.values()]
        text = (
            "a sweep is the whole value of one parameter of a method: it stands neither within a "
            "list or a mapping, nor in the loader"
        )
        return self._faults + [
            PipelineError(text, sweep.place.where, sweep.place.pointer)
            for sweep in self._made
            if not any(sweep is value for value in values)
        ]


SweepLoader.add_constructor(SWEEP_LIST, SweepLoader.construct_sweep)
SweepLoader.add_constructor(SWEEP_RANGE, SweepLoader.construct_sweep)
