"""Describe a scan without its data, and check that it provides all inputs of a pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.arrays import ArraySpec, block_shape
from ..errors import SourceError, UnknownReferenceError
from .pipeline import Pipeline, Section
from .steps import Step


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """Shapes, dtypes and other properties of a scan."""

    projections: ArraySpec
    """Axes (angles, detector_y, detector_x)."""
    flats: ArraySpec | None = None
    """Shape (frames, detector_y, detector_x) and dtype of the flats, if there are any."""
    darks: ArraySpec | None = None
    """Shape and dtype of the darks, if there are any."""
    has_angles: bool = True
    """Whether the angle of each projection is known."""
    flat_groups: int = 1
    """Number of groups of flats that are interpolated in time; 1 if their mean is used."""
    dummies: tuple[str, ...] = ()
    """Names of frames that are replaced by constants: flats, darks."""
    in_memory: bool = False
    """Whether it is an array that the device can use, or copy blocks from."""
    reads_rows: bool = True
    """Whether rows can be read without whole frames."""
    name: str = "array"
    """Name for messages and the title of the plan."""

    def missing_frame_notes(self, taken: set[str]) -> tuple[str, ...]:
        """Notes on flats and darks in `taken` that are missing or replaced by constants."""
        notes = []
        for side, spec, value in (("flats", self.flats, "ones"), ("darks", self.darks, "zeros")):
            if side in taken and spec is None:
                notes.append(f"{self.name} has no {side}: methods run without if they can")
            if side in taken and side in self.dummies:
                notes.append(
                    f"{self.name} has no {side}, or they are ignored: a frame of {value} replaces "
                    "them, as in httomo"
                )
        return tuple(notes)

    def frames(self, names: set[str]) -> list[ArraySpec]:
        """The flats and darks in `names` that the scan has."""
        sides = {"flats": self.flats, "darks": self.darks}
        return [spec for name, spec in sides.items() if spec is not None and name in names]


CHANGED_DTYPE = np.dtype(np.float32)
"""Dtype of the mean flats and darks that methods change, as in httomo."""


def changes_frames(steps: Sequence[Step], index: int) -> bool:
    """True if a step changes flats and darks that a later one takes."""
    return steps[index].meta.side_data is not None and any(
        {"flats", "darks"} & set(step.meta.supplied) for step in steps[index + 1 :]
    )


def scan_after(steps: Sequence[Step], index: int, scan: ScanSpec) -> ScanSpec:
    """The scan as a step receives it: after a change one dark, and one flat for each group."""
    if not any(changes_frames(steps, earlier) for earlier in range(index)):
        return scan

    def reduced(spec: ArraySpec | None, n: int) -> ArraySpec | None:
        return None if spec is None else ArraySpec((n, *spec.shape[1:]), CHANGED_DTYPE)

    flats, darks = reduced(scan.flats, scan.flat_groups), reduced(scan.darks, 1)
    return dataclasses.replace(scan, flats=flats, darks=darks)


def check_supplied(pipeline: Pipeline, scan: ScanSpec) -> None:
    """Check that the scan has the flats, darks and angles that methods need.

    Raises
    ------
    SourceError
        If it lacks one of them, naming the method and how to provide it.
    """
    has = {"flats": scan.flats is not None, "darks": scan.darks is not None}
    has["angles"] = scan.has_angles
    for step in pipeline.steps:
        for name in step.meta.supplied:
            parameter = step.meta.parameters[name]
            if not has.get(name, True) and parameter.default is parameter.empty:
                how = "rotation_angles" if name == "angles" else name
                raise SourceError(
                    f"{scan.name} has no {name}, which {step.meta.name} needs: set {how} in the "
                    "loader of the pipeline (standard_tomo), or for arrays use "
                    f"maxslices.ArrayScan(data, {name}=...)"
                )


def check_shapes(step: Step, data: ArraySpec, scan: ScanSpec) -> None:
    """Check that flats, darks and angles fit the data of a method.

    Raises
    ------
    SourceError
        If an earlier method changed the shape of the data.
    """
    supplied = step.meta.supplied
    for name in ("flats", "darks"):
        for spec in scan.frames({name} & set(supplied)):
            if spec.shape[1:] != data.shape[1:]:
                raise SourceError(
                    f"{step.meta.name} receives {name} of {_by(spec.shape[1:])} for data of "
                    f"{_by(data.shape[1:])}: move it before the method that changes the shape"
                )
    n_angles = scan.projections.shape[0]
    if "angles" in supplied and scan.has_angles and data.shape[0] > n_angles:
        raise SourceError(
            f"{step.meta.name} receives {n_angles} angles for {data.shape[0]} projections: move it "
            "before the method that changes their number"
        )


def check_known_shapes(sections: Iterable[Section], scan: ScanSpec) -> None:
    """Check flats, darks and angles as `check_shapes` does, for all declared shapes.

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
