"""Checks that a scan has what a pipeline needs: flats, darks and angles that fit the data."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.arrays import ArraySpec, block_shape
from ..errors import SourceError, UnknownReferenceError
from .pipeline import Pipeline
from .scan_spec import ScanSpec
from .sections import Section
from .steps import Step


def check_supplied(pipeline: Pipeline, scan: ScanSpec) -> None:
    """Check that the scan has the flats, darks and angles that methods need.

    Raises
    ------
    SourceError
        Naming the method and how to give what is missing.
    """
    has = {"flats": scan.flats is not None, "darks": scan.darks is not None}
    has["angles"] = scan.has_angles
    for step in pipeline.steps:
        for name in step.meta.supplied:
            parameter = step.meta.parameters[name]
            if not has.get(name, True) and parameter.default is parameter.empty:
                how = "rotation_angles" if name == "angles" else name
                raise SourceError(
                    f"{scan.name} has no {name}, which {step.meta.name} needs: give them with "
                    f"{how} in the pipeline's loader (standard_tomo), or for arrays with "
                    f"maxslices.ArrayScan(data, {name}=...)"
                )


def check_shapes(step: Step, data: ArraySpec, scan: ScanSpec) -> None:
    """Check that flats, darks and angles fit the data that a method is given.

    Raises
    ------
    SourceError
        If an earlier method changed the shape, naming this one.
    """
    supplied = step.meta.supplied
    for name in ("flats", "darks"):
        for spec in scan.frames({name} & set(supplied)):
            if spec.shape[1:] != data.shape[1:]:
                raise SourceError(
                    f"{step.meta.name} is given {name} of {_by(spec.shape[1:])} for data of "
                    f"{_by(data.shape[1:])}: put it before the method that changes the shape"
                )
    n_angles = scan.projections.shape[0]
    if "angles" in supplied and scan.has_angles and data.shape[0] > n_angles:
        raise SourceError(
            f"{step.meta.name} is given {n_angles} angles for {data.shape[0]} projections: put "
            "it before the method that changes their number"
        )


def check_known_shapes(sections: Iterable[Section], scan: ScanSpec) -> None:
    """Check flats, darks and angles as `check_shapes` does, as far as shapes are declared.

    Raises
    ------
    SourceError
        If an earlier method changed the shape.
    """
    current = scan.projections
    for section in sections:
        slice_dim = section.slice_dim
        for step in section.steps:
            check_shapes(step, current, scan)
            if step.meta.side_results:
                continue
            if not step.meta.declares_dims:
                return
            try:
                dims = step.meta.output_other_dims(
                    slice_dim, current.other_dims(slice_dim), **step.known_parameters()
                )
            except UnknownReferenceError:
                return
            shape = block_shape(slice_dim, current.shape[slice_dim], dims)
            current = ArraySpec(shape, current.dtype)


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
