"""Checks that a plan or a stopped run matches a run, and that its memory is free."""

from __future__ import annotations

import importlib.util
from typing import Any

from ..core.allocators import Device
from ..core.units import format_bytes
from ..devices import Backend
from ..errors import PlanError
from ..estimate.request_key import package_of
from ..io import Source
from ..pipeline import Pipeline, Reference, ScanSpec, cut_into_sections
from ..planner import MadeFor, Plan
from ..planner.section_plan import check_sections
from ..system.packages import installed_version
from ..system.plain_records import plain
from ..system.threads import N_CORES
from .scan_and_output import spec_of


def check_plan_here(
    plan: Plan, in_memory: bool, pipeline: Pipeline, source: Source, backend: Backend
) -> None:
    """Check that a plan matches a run.

    Raises
    ------
    PlanError
        If it differs. The error names each difference.
    UsageError
        If the plan's numbers are inconsistent.
    """
    spec = spec_of(source, backend)
    differences = plan.made_for.differences(made_for(pipeline, spec, backend.kind))
    if differences:
        raise PlanError(f"the plan was made for something else: {'; '.join(differences)}")
    check_sections(plan.sections, plan.budget_bytes - plan.reserved_bytes)
    _check_sections_of(plan, pipeline, spec)
    _check_destination(plan, pipeline, in_memory=in_memory)


def _check_sections_of(plan: Plan, pipeline: Pipeline, scan: ScanSpec) -> None:
    """Check that a plan's sections match the pipeline on the scan."""
    if plan.sections[0].input != scan.projections:
        raise PlanError(
            f"the plan's first section reads {plan.sections[0].input}; the scan is "
            f"{scan.projections}: plan again"
        )
    pipeline = _as_planned(pipeline, plan)
    steps = [step for section in plan.sections for step in section.steps]
    values = [dict(step.parameters) for step in steps]
    expected = [{name: plain(v) for name, v in step.parameters.items()} for step in pipeline.steps]
    planned = [(s.slice_dim, s.halo, [step.method for step in s.steps]) for s in plan.sections]
    # A plan that was made without the scan assumes that rows can be read. It can still run.
    alternatives = [
        [
            (section.slice_dim, section.halo, [step.meta.full_name for step in section.steps])
            for section in cut_into_sections(pipeline, reads_rows=reads_rows)
        ]
        for reads_rows in (scan.reads_rows, not scan.reads_rows)
    ]
    if planned not in alternatives or values != expected:
        raise PlanError("the plan's sections are not those of the pipeline: plan again")


def _as_planned(pipeline: Pipeline, plan: Plan) -> Pipeline:
    """Replace references of a pipeline by the values that a plan was made with.

    Raises
    ------
    PlanError
        If the plan has a value for a parameter that is not a reference.
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


def _check_destination(plan: Plan, pipeline: Pipeline, *, in_memory: bool) -> None:
    """Check that a plan and a run have the same destination of the result."""
    destination = plan.sections[-1].destination
    if destination == "memory" and not in_memory:
        raise PlanError(
            "the plan keeps its result in memory: leave out the folder, or plan a run into one"
        )
    if destination == "result" and in_memory:
        raise PlanError("the plan writes its result to a folder: name one as `out`")
    is_saved = any(step.save_result for step in pipeline.steps)
    if is_saved == (destination == "nothing"):
        keeps = "a result" if is_saved else "no result"
        raise PlanError(
            f"the plan's last destination is {destination!r}; the pipeline saves {keeps}: plan "
            "again"
        )


def check_free(plan: Plan, place: str, free_bytes: int, host_free_bytes: int) -> None:
    """Check that the memory that a plan needs is free.

    Parameters
    ----------
    plan : Plan
        The plan.
    place : str
        Name of the device, for the message.
    free_bytes, host_free_bytes : int
        Free memory on the device and on the host.

    Raises
    ------
    PlanError
        If it is not free.
    """
    needed = max(each.estimated_bytes + each.stored_bytes for each in plan.sections)
    needed += plan.reserved_bytes
    if plan.device != "cpu" and needed > free_bytes:
        raise PlanError(
            f"the plan needs {format_bytes(needed)} on {place}, where {format_bytes(free_bytes)} "
            "are free: plan again for less memory"
        )
    check_host_free(plan, place, free_bytes if plan.device == "cpu" else host_free_bytes)


def check_host_free(plan: Plan, place: str, free_bytes: int) -> None:
    """Check that the host memory that a plan needs is free.

    Parameters are those of `check_free`.

    Raises
    ------
    PlanError
        If it is not free.
    """
    needed = max(each.host_bytes for each in plan.sections)
    option = "--memory" if plan.device == "cpu" else "--host-memory"
    if plan.device == "cpu":  # data of all kinds are in host memory
        needed = max(needed, *(each.estimated_bytes + each.stored_bytes for each in plan.sections))
    if needed > free_bytes:
        raise PlanError(
            f"the plan needs {format_bytes(needed)} of host memory, and {format_bytes(free_bytes)} "
            f"are free ({place}): allow less with {option}"
        )


def made_for(pipeline: Pipeline, scan: ScanSpec, device: Device) -> MadeFor:
    """Describe what a plan is for, so that it can be compared with a run.

    The name of the scan is omitted, as the same scan may have another path elsewhere. Flats, darks
    and angles that no method takes are omitted too.
    """
    taken = {name for step in pipeline.steps for name in step.meta.supplied}
    frames = {"flats": scan.flats, "darks": scan.darks}
    described: dict[str, Any] = {"projections": str(scan.projections)}
    described |= {name: str(spec) for name, spec in frames.items() if name in taken and spec}
    if "angles" in taken and scan.has_angles:
        described["angles"] = "given"
    return MadeFor(
        scan=described,
        scan_in_memory=scan.in_memory,
        pipeline=pipeline.content(),
        device=device,
        n_cores=N_CORES if device == "cpu" else None,
        versions=_versions(pipeline, device),
    )


def _versions(pipeline: Pipeline, device: Device) -> dict[str, Any]:
    names = {"numpy"}
    if device == "cuda":
        names.add("cupy")
    for step in pipeline.steps:
        names.add(package_of(step.meta.function))
        names.add(step.meta.array_module or "numpy")
    names -= {"", "__main__", "maxslices"}
    return {name: _version(name) for name in ("maxslices", *sorted(names))}


def _version(name: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        if importlib.util.find_spec(name) is None:
            return None
    except ValueError:  # a module that a program created has no specification
        return None
    if name == "cupy":  # installed as cupy-cuda13x and the like
        import cupy

        return str(cupy.__version__)
    return installed_version(name)
