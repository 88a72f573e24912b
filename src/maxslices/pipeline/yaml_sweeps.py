"""Sweeps in pipeline files: httomo's tags ``!Sweep`` and ``!SweepRange``."""

from __future__ import annotations

from typing import Any

import yaml

from ..errors import PipelineError, UsageError
from .steps import Sweep
from .sweep_values import sweep_list, sweep_range
from .yaml_values import SWEEP_LIST, SWEEP_RANGE, PlainLoader


class SweepLoader(PlainLoader):
    """Loader of plain values, and of sweeps among them."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self._file = file
        self.sweeps: list[Sweep] = []
        """Sweeps that were made."""

    def construct_sweep(self, node: yaml.Node) -> Sweep:
        """Make a sweep of a node that `NodeCheck` has seen.

        Raises
        ------
        PipelineError
            If it has no values or too many, or a range is not of numbers.
        """
        mark = node.start_mark
        place = f"{self._file}:{mark.line + 1}:{mark.column + 1}"
        try:
            if isinstance(node, yaml.SequenceNode):
                found = sweep_list(self.construct_sequence(node, deep=True))
            else:
                assert isinstance(node, yaml.MappingNode)
                ends: dict[Any, Any] = self.construct_mapping(node, deep=True)
                found = sweep_range(ends["start"], ends["stop"], ends["step"])
        except UsageError as error:
            raise PipelineError(str(error), place) from None
        self.sweeps.append(Sweep(found.values, place))
        return self.sweeps[-1]


SweepLoader.add_constructor(SWEEP_LIST, SweepLoader.construct_sweep)
SweepLoader.add_constructor(SWEEP_RANGE, SweepLoader.construct_sweep)
