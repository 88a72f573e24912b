"""A run in this process, its identity and its plan. `on_workers` does the same with workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..devices import Backend
from ..devices.cpu import CpuBackend
from ..devices.in_place import is_direct
from ..errors import PlanError, UnknownReferenceError
from ..estimate import ModelResolver
from ..io import Source
from ..io.files import path_of
from ..pipeline import Pipeline, Reference, ScanSpec
from ..planner import Budgets, Plan
from ..planner.block_size import BlockChoice
from ..runner import Results, ResultsInMemory
from ..runner.execute import SectionExecutor, execute
from ..runner.folder.unfinished_run import changes, run_identity
from ..runner.report.progress import ProgressOnAll
from ..runner.report.run_timeline import WallTime
from .check_run import check_free, check_host_free, check_plan_here
from .plan_scan import plan_pipeline
from .resources import budgets_here, chooser_for
from .run_request import RunRequest
from .scan_and_output import files_read, spec_of

LOGGER = logging.getLogger("maxslices.plan")


@dataclass(frozen=True, slots=True)
class Team:
    """Carries out a run in this process. `RunOnWorkers` does so with workers."""

    request: RunRequest
    """The arguments of the run."""
    pipeline: Pipeline
    """The pipeline to run."""
    source: Source
    """The scan."""
    backend: Backend
    """Device of this process."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function where blocks run, with pipeline, scan and device as last arguments."""
        return function(*args, self.pipeline, self.source, self.backend)

    def identity(self) -> dict[str, Any]:
        """Describe the run. See `run_identity`."""
        has_path = path_of(self.request.scan) is not None
        read = files_read(self.request.scan, self.pipeline) if has_path else None
        return identity_of(read, self.pipeline, self.source, self.backend)

    def check(self, plan: Plan) -> None:
        """Check that the memory that a plan needs is free."""
        free_bytes = self.backend.free_bytes(), CpuBackend().free_bytes()
        check_free(plan, self.backend.name, *free_bytes)

    def new_plan(self, folder: Results) -> tuple[Plan, ModelResolver | None]:
        """Plan the run. Measurements of the run can correct the resolver's records."""
        request, backend = self.request, self.backend
        plan, resolver = plan_source(
            budgets_here(backend, request.memory, request.host_memory),
            self.pipeline,
            self.source,
            backend,
            block=request.block,
            estimator=request.estimator,
            scratch=request.scratch,
            result_in_memory=folder.path is None,
            result_is_direct=request.out_array is not None
            and is_direct(request.out_array, backend),
        )
        if (request.memory if backend.kind == "cpu" else request.host_memory) is not None:
            check_host_free(plan, backend.name, CpuBackend().free_bytes())
        return plan, resolver

    def begin(self, plan: Plan, folder: Results) -> SectionExecutor:
        """Return the object that runs the sections of a plan."""
        return SectionExecutor()

    def device_of(self, plan: Plan) -> str:
        """Return the name of the plan's device."""
        return self.backend.name


def plan_run(team: Team, request: RunRequest, folder: Results) -> tuple[Plan, ModelResolver | None]:
    """Return the plan of the unfinished run, that of the request, or a new one.

    Returns
    -------
    (Plan, ModelResolver or None)
        With a new plan comes the resolver whose records the run may correct.

    Raises
    ------
    PlanError
        If an existing plan is for another run, or needs more than the free memory.
    MaxslicesError
        If an estimator fails, or the pipeline does not fit.
    """
    if folder.unfinished is not None:
        earlier = folder.unfinished
        try:
            team.call(check_plan_here, earlier.plan, False)
            if not earlier.is_computed and (
                differences := changes(earlier.identity, folder.identity)
            ):
                raise PlanError("; ".join(differences))
        except PlanError as error:
            raise PlanError(
                f"the run in {folder.path} cannot be resumed: {error}; start anew with --overwrite"
            ) from None
        team.check(earlier.plan)
        return earlier.plan, None
    if request.plan is not None:
        team.call(check_plan_here, request.plan, folder.path is None)
        team.check(request.plan)
        return request.plan, None
    return team.new_plan(folder)


@dataclass(slots=True)
class ValueFinder:
    """Finds the values of references by running the steps before them without keeping data."""

    source: Source
    """The scan."""
    backend: Backend
    """The device."""
    scan: ScanSpec
    """Its shapes and dtypes."""
    budgets: Budgets
    """Memory for this run."""
    resolver: ModelResolver
    """Finds the memory models of the methods."""
    scratch: str | os.PathLike[str] | None = None
    """Folder for data between sections. Default: the folder for temporary files."""
    _values: dict[Reference, Any] = field(default_factory=dict)
    """Value of each reference that was found."""

    def find(self, pipeline: Pipeline, error: UnknownReferenceError) -> Pipeline:
        """Return the pipeline planned with the value that an error asks for.

        Raises
        ------
        UnknownReferenceError
            If a swept step precedes the reference.
        """
        reference: Reference = error.reference
        if reference not in self._values:
            before = pipeline.finding(reference)
            if before is None:
                raise error
            LOGGER.info("a run finds %s before planning", reference)
            self._values[reference] = self._run(before, reference)
        return pipeline.with_planned(reference, self._values[reference])

    def _run(self, before: Pipeline, reference: Reference) -> Any:
        plan = plan_pipeline(
            before, self.scan, self.budgets, self.resolver, result_in_memory=True, find=self.find
        )
        scratch = None if self.scratch is None else Path(self.scratch)
        _, side, _ = execute(
            plan,
            before,
            self.source,
            self.backend,
            ResultsInMemory(scratch),
            ProgressOnAll(),
            WallTime(),
        )
        return side.by_reference[reference.step_id, reference.name]


def plan_source(
    budgets: Budgets,
    pipeline: Pipeline,
    source: Source,
    backend: Backend,
    *,
    block: BlockChoice,
    estimator: str | None,
    scratch: str | os.PathLike[str] | None,
    result_in_memory: bool = False,
    result_is_direct: bool = False,
) -> tuple[Plan, ModelResolver]:
    """Plan a pipeline on an open scan in the process that will run its blocks."""
    spec = spec_of(source, backend)
    resolver = chooser_for(spec, budgets, backend, estimator)
    finder = ValueFinder(source, backend, spec, replace(budgets, n_workers=None), resolver, scratch)
    plan = plan_pipeline(
        pipeline,
        spec,
        budgets,
        resolver,
        block=block,
        result_in_memory=result_in_memory,
        result_is_direct=result_is_direct,
        find=finder.find,
    )
    return plan, resolver


def identity_of(
    files: list[Path] | None, pipeline: Pipeline, source: Source, backend: Backend
) -> dict[str, Any]:
    """Call `run_identity` with the arguments of `Team.call`."""
    return run_identity(pipeline, backend, files)
