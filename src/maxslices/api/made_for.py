"""Scan, pipeline, kind of device and versions that a plan is made for."""

from __future__ import annotations

import importlib.util
from typing import Any

from ..core.allocators import Device
from ..estimate.source_hash import package_of
from ..pipeline import Pipeline, ScanSpec
from ..planner import MadeFor
from ..system.package_versions import installed_version
from ..system.threads import N_CORES


def made_for(pipeline: Pipeline, scan: ScanSpec, device: Device) -> MadeFor:
    """Describe what a plan is made for, or what a run is about to do, to be compared.

    The scan's name is left out: the same scan may have another path elsewhere. So are flats, darks
    and angles that no method takes.
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
    """Version of an installed package; None where it is missing."""
    try:
        if importlib.util.find_spec(name) is None:
            return None
    except ValueError:  # a module that was made while a program ran has no specification
        return None
    if name == "cupy":  # installed as cupy-cuda13x and the like
        import cupy

        return str(cupy.__version__)
    return installed_version(name)
