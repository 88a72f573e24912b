"""What a plan is made for: the scan, the pipeline, the kind of device and the versions."""

from __future__ import annotations

import importlib.util
from typing import Any

from ..estimate.fingerprint import package_of
from ..estimate.package_versions import installed_version
from ..model.allocators import Device
from ..pipeline import Pipeline, ScanSpec
from ..planner import MadeFor


def made_for(pipeline: Pipeline, scan: ScanSpec, device: Device) -> MadeFor:
    """Describe what a plan is made for, so that a run can tell whether it is the same."""
    return MadeFor(
        scan={
            "projections": str(scan.projections),
            "flats": None if scan.flats is None else str(scan.flats),
            "darks": None if scan.darks is None else str(scan.darks),
            "angles": scan.has_angles,
        },
        pipeline=pipeline.content(),
        device=device,
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
    if importlib.util.find_spec(name) is None:
        return None
    if name == "cupy":  # installed as cupy-cuda13x and the like
        import cupy

        return str(cupy.__version__)
    return installed_version(name)
