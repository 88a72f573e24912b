"""Values of references that a plan depends on, found by running the steps before them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..devices import Backend
from ..errors import UnknownReferenceError
from ..estimate import ModelResolver
from ..io import Source
from ..pipeline import Pipeline, Reference, ScanSpec
from ..planner import Budgets
from ..runner import ResultsInMemory
from ..runner.execute import execute
from ..runner.report.progress import ProgressOnAll
from ..runner.report.run_timeline import WallTime
from .plan_scan import plan_pipeline

LOGGER = logging.getLogger("maxslices.plan")


@dataclass(slots=True)
class ValueFinder:
    """Finds values of references by a run of the steps before them that keeps no data."""

    source: Source
    """The scan."""
    backend: Backend
    """The device."""
    scan: ScanSpec
    """Its shapes and dtypes."""
    budgets: Budgets
    """Memory for such a run."""
    resolver: ModelResolver
    """Finds the memory models of its methods."""
    scratch: str | os.PathLike[str] | None = None
    """Folder for data between sections; by default the one for temporary files."""
    notes: list[str] = field(default_factory=list)
    """None: nothing is assumed."""
    _found: dict[Reference, Any] = field(default_factory=dict)
    """Values by their references."""

    def find(self, pipeline: Pipeline, error: UnknownReferenceError) -> Pipeline:
        """Return the pipeline planned with the value that an error asks for.

        Raises
        ------
        UnknownReferenceError
            If a swept step comes before it.
        """
        reference: Reference = error.reference
        if reference not in self._found:
            before = pipeline.finding(reference)
            if before is None:
                raise error
            LOGGER.info("%s is found before planning", reference)
            self._found[reference] = self._run(before, reference)
        return pipeline.with_planned(reference, self._found[reference])

    def _run(self, before: Pipeline, reference: Reference) -> Any:
        plan = plan_pipeline(
            before, self.scan, self.budgets, self.resolver, result_in_memory=True, values=self
        )
        scratch = None if self.scratch is None else Path(self.scratch)
        _, side, _ = execute(
            plan,
            before,
            self.source,
            self.backend,
            ResultsInMemory(scratch),
            ProgressOnAll([]),
            WallTime(),
        )
        return side.by_reference[reference.step_id, reference.name]
