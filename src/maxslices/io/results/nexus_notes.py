"""Metadata of an HDF5 result in NeXus: axes, scan, and a NXprocess for each step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...system.plain_records import plain
from ..hdf5.objects import open_hdf5
from .result_info import SCAN_AXES, ResultInfo

_FOUND_CHARS = 256
"""Space for the value of a parameter that is computed during the run; numbers need up to 24."""
_STEP_BYTES, _PARAMETER_BYTES = 4096, 1024
"""Disk space of a step and of each parameter; HDF5 2.0 takes 1.9 and 0.5 kB."""
_FACT_BYTES = 4096
"""Disk space of a fact with its attributes, and of its group."""


def notes_bytes(info: ResultInfo, shape: tuple[int, ...]) -> int:
    """Upper bound of the disk space of `write_notes`."""
    of_steps = sum(_STEP_BYTES + _PARAMETER_BYTES * len(step.parameters) for step in info.steps)
    texts = len(info.scan) + sum(len(str(step.parameters)) for step in info.steps)
    facts = info.carried_facts.values()
    of_facts = sum(_FACT_BYTES + 4 * len(f"{fact} {fact.where}") for fact in facts)
    return 8 * sum(shape) + of_steps + texts + of_facts


def write_notes(file: h5py.File, info: ResultInfo, shape: tuple[int, int, int]) -> h5py.Group:
    """Write the groups of a result's file without the data; return the group for the data."""
    file.attrs["NX_class"] = "NXroot"
    file.attrs["default"] = "entry"
    file.attrs["creator"] = info.program
    entry = _group(file, "entry", "NXentry")
    entry.attrs["default"] = "data"
    _write_facts(entry, info)
    if info.scan:
        entry["raw_file"] = info.scan
        if "title" not in entry:
            entry["title"] = info.scan
    for number, step in enumerate(info.steps, start=1):
        process = _group(entry, f"process_{number:02d}", "NXprocess")
        process["program"] = step.version
        process["sequence_index"] = number
        process["method"] = step.method
        if info.date:
            process["date"] = info.date
        parameters = _group(process, "parameters", "NXparameters")
        for name, value in step.parameters.items():
            _write_parameter(parameters, name, value)
    group = _group(entry, "data", "NXdata")
    group.attrs["signal"] = "data"
    group.attrs["axes"] = list(info.axes)
    for axis, n in zip(info.axes, shape, strict=True):
        _write_axis(group, info, axis, n)
    if info.pixel_size is not None:
        for name, um in (("x", info.pixel_size.column_um), ("y", info.pixel_size.row_um)):
            entry[f"{name}_pixel_size"] = um
            entry[f"{name}_pixel_size"].attrs["units"] = "um"
            entry[f"{name}_pixel_size"].attrs["source"] = info.pixel_size.where
    return group


def describe_data(data: h5py.Dataset, info: ResultInfo) -> None:
    """Write the attributes that viewers need: interpretation as images, and names of the axes."""
    data.attrs["interpretation"] = "image"
    for dimension, axis in zip(data.dims, info.axes, strict=True):
        dimension.label = axis


def fill_in_found(path: Path, values: Mapping[str, Any]) -> None:
    """Replace references by the values that were computed during the run.

    The size of the file does not change.

    Parameters
    ----------
    path : Path
        A closed file with metadata.
    values : mapping of str to value
        Text of a reference -> its value.
    """
    if not values:
        return
    with open_hdf5(path, "r+") as file:
        for name in file["entry"]:
            if not name.startswith("process_"):
                continue
            for stored in file[f"entry/{name}/parameters"].values():
                if stored.dtype.kind != "S":
                    continue
                reference = stored[()].decode()
                if reference in values:
                    text = json.dumps(plain(values[reference]))
                    if len(text) <= _FOUND_CHARS:
                        stored[()] = text.encode()


def _group(parent: h5py.Group, name: str, nx_class: str) -> h5py.Group:
    group = parent.create_group(name)
    group.attrs["NX_class"] = nx_class
    return group


def _write_facts(entry: h5py.Group, info: ResultInfo) -> None:
    """Write the scan's facts about sample, beam and detector, each with its path in the scan."""
    for path, fact in info.carried_facts.items():
        group = entry
        for name in path.split("/")[:-1]:
            nx_class = f"NX{name}"
            group = group[name] if name in group else _group(group, name, nx_class)
        name = path.rpartition("/")[2]
        value = fact.value.replace("\0", "") if isinstance(fact.value, str) else fact.value
        group[name] = value
        if fact.unit:
            group[name].attrs["units"] = fact.unit.replace("\0", "")
        group[name].attrs["source"] = fact.where.replace("\0", "")


def _write_axis(group: h5py.Group, info: ResultInfo, axis: str, n: int) -> None:
    """Write the positions along an axis, in degrees, micrometres or pixels."""
    if axis == SCAN_AXES[0]:
        assert info.angles is not None
        values, unit = np.rad2deg(np.asarray(info.angles, np.float64)), "degree"
    elif axis == "frame":
        values, unit = np.arange(n), ""
    else:
        # y and x of a reconstructed slice begin at its corner.
        first = 0 if axis in ("x", "y") else info.first_pixel[axis == "detector_x"]
        values = (first or 0) + np.arange(n)
        size, unit = info.pixel_um(axis), "pixel"
        if size is not None:
            values, unit = values * size, "um"
    stored = group.create_dataset(axis, data=values)
    if unit:
        stored.attrs["units"] = unit


def _write_parameter(group: h5py.Group, name: str, value: Any) -> None:
    """Write a parameter: numbers and text unchanged, references with space for their value."""
    stored = plain(value)
    if isinstance(stored, str) and stored.startswith("${{") and len(stored) <= _FOUND_CHARS:
        group.create_dataset(name, data=np.array(stored.encode(), f"S{_FOUND_CHARS}"))
    elif isinstance(stored, bool | int | float | str):
        try:
            group[name] = stored
        except (TypeError, ValueError, OverflowError):  # text with NUL, or a number of 100 digits
            group[name] = json.dumps(stored)
    else:
        group[name] = json.dumps(stored)
