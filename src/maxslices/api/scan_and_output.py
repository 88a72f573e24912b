"""The input and output of a run: the scan and the destination of the results."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..devices import Backend
from ..devices.in_place import slices_in_place
from ..errors import UsageError
from ..io import ArrayScan, Source, open_source
from ..io.files import path_of
from ..io.results.result_format import ResultFormat
from ..io.scans.chosen_part import PartLike
from ..io.scans.facts import CONFLICT, StoredFacts, one_fact, one_number
from ..io.scans.frame_source import FrameSource
from ..io.scans.layout import Layout
from ..io.scans.loader import AngleFile, SideData
from ..pipeline import Pipeline, ScanSpec
from ..planner import Plan

Scan = str | os.PathLike[str] | np.ndarray | Source


@contextmanager
def opened(scan: Scan, pipeline: Pipeline) -> Iterator[Source]:
    """Open a scan with the pipeline's loader options. A source of the caller stays open."""
    if isinstance(scan, ArrayScan):
        with scan.with_options(pipeline.loader) as source:
            yield source
        return
    if isinstance(scan, Source):
        yield scan
        return
    with open_source(scan, pipeline.loader) as source:
        yield source


def spec_of(source: Source, backend: Backend | None = None) -> ScanSpec:
    """Describe the shapes and dtypes of a scan, and whether a device can read it in place."""
    weights = source.flat_weights()
    return ScanSpec(
        source.spec,
        source.flats,
        source.darks,
        source.angles is not None,
        1 if weights is None else len(weights[1]),
        source.dummies,
        in_memory=backend is not None
        and slices_in_place(source, backend, 0, 0, source.spec.shape[0]) is not None,
        reads_rows=source.reads_rows,
        name=source.name,
    )


_MOST_KEV = 1000.0
"""Energies above this without a unit are in eV, as beamlines stay below 1 MeV."""


def facts_of(source: object) -> StoredFacts | None:
    """Return the facts that a scan's file stores next to the frames, if it has such a file."""
    return source.stored if isinstance(source, FrameSource) else None


def likely_layout(source: object) -> Layout | None:
    """Return the layout of a scan if it was guessed from shapes and names."""
    stored = facts_of(source)
    return stored.layout if stored is not None and stored.layout.is_likely else None


def facts_not_applied(source: Source, pipeline: Pipeline, *, has_pixel_size: bool) -> list[str]:
    """List stored facts that change a reconstruction and are not applied, or contradict a step.

    Parameters
    ----------
    source : Source
        The scan.
    pipeline : Pipeline
        The pipeline. Its steps may apply some of the facts.
    has_pixel_size : bool
        Whether the user sets the pixel size.
    """
    stored = facts_of(source)
    if stored is None:
        return []
    names = {step.meta.name for step in pipeline.steps}
    texts = [fact.text for fact in stored.unused if names.isdisjoint(fact.methods)]
    if stored.pixel_size_note and not has_pixel_size:
        texts.append(stored.pixel_size_note)
    kev, where = _energy(stored) or (None, "")
    for step in pipeline.steps:
        energy = (step.meta.merged() | dict(step.parameters)).get("energy")
        if kev is None or not isinstance(energy, int | float) or isinstance(energy, bool):
            continue
        if not math.isclose(energy, kev, rel_tol=CONFLICT):
            texts.append(
                f"{step.meta.name} has energy {energy:g} keV, and the scan stores {kev:g} keV "
                f"({where}): give energy: {kev:g}"
            )
    return [f"{source.name}: {text}" for text in texts]


def _energy(stored: StoredFacts) -> tuple[float, str] | None:
    """Return the beam's energy in keV and its path, or None if it or its unit is unknown."""
    energy, kev = one_fact(stored.values, "energy"), one_number(stored.values, "energy")
    if energy is None or kev is None or kev <= 0:
        return None
    unit = energy.unit.lower()
    is_ev = unit == "ev" or (not unit and kev > _MOST_KEV)
    return (kev / 1000 if is_ev else kev, energy.where) if unit in ("", "ev", "kev") else None


def files_read(scan: Scan, pipeline: Pipeline) -> list[Path]:
    """Files and folders that a run reads, as far as they are given by path."""
    sides = (pipeline.loader.flats, pipeline.loader.darks)
    inputs = [scan, *(side.file for side in sides if isinstance(side, SideData))]
    if isinstance(pipeline.loader.rotation_angles, AngleFile):
        inputs.append(pipeline.loader.rotation_angles.file)
    return [path for each in inputs if (path := path_of(each)) is not None]


def check_out(out: object, scan: Scan) -> None:
    """Check the destination of the results."""
    if out is None:
        return
    if isinstance(out, np.ndarray):
        # Blocks and their halos are read after results of earlier blocks are written.
        data = scan.data if isinstance(scan, ArrayScan) else scan
        if isinstance(data, np.ndarray) and np.may_share_memory(out, data):
            raise UsageError("out shares memory with the scan: give a separate array")
    elif not isinstance(out, str | os.PathLike):
        raise UsageError(f"out must be a folder or a NumPy array, not a {type(out).__name__}")
    elif not os.fspath(out):
        raise UsageError("the folder for the results has no name: use '.' for the current folder")
    elif isinstance(scan, str | os.PathLike) and _is_same_folder(Path(scan), Path(out)):
        # The next run would read TIFFs of the results as frames of the scan.
        raise UsageError(f"{out} is the scan itself: choose another folder for the results")


def _is_same_folder(scan: Path, out: Path) -> bool:
    """Whether two paths are the same folder."""
    try:
        return scan.is_dir() and out.samefile(scan)
    except (OSError, ValueError):  # one does not exist, which is reported later
        return False


def check_formats(formats: Sequence[ResultFormat], plan: Plan) -> None:
    """Check that the results can be written in the requested formats."""
    for section in plan.sections:
        dtype = section.output.dtype
        refused = [str(each) for each in formats if not each.holds(dtype)]
        if section.destination == "result" and refused:
            raise UsageError(
                f"{' and '.join(refused)} cannot hold {dtype}, which {section.steps[-1].name} "
                "returns: use --format hdf5, or convert the data in a further step"
            )


def check_result(array: np.ndarray, plan: Plan) -> None:
    """Check that an array can hold the last result."""
    wanted = plan.sections[-1].output
    if plan.sections[-1].destination != "memory":
        raise UsageError("out is an array, but no step of the pipeline has save_result")
    if array.shape != wanted.shape or array.dtype != wanted.dtype:
        shape = "x".join(map(str, array.shape))
        raise UsageError(f"out is {shape} {array.dtype}; the result is {wanted}")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise UsageError("out must be a C-contiguous and writeable array")


def chosen_part(scan: object, pipeline: Pipeline, chosen: dict[str, PartLike | None]) -> Pipeline:
    """Return the pipeline on a part of its scan.

    Raises
    ------
    UsageError
        If a part is invalid, or the scan is already open.
    """
    names = [name for name, part in chosen.items() if part is not None]
    if names and isinstance(scan, Source) and not isinstance(scan, ArrayScan):
        raise UsageError(
            f"{', '.join(names)} cannot be chosen from an open Source: give its path, or "
            "choose the part when it is opened"
        )
    return pipeline.reading(chosen)
