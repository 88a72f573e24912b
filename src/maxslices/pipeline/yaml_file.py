"""Read pipeline files: YAML in httomo's form, with the position of each key."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import yaml

from ..core.parameters import nearest
from ..errors import PipelineError, UsageError
from ..system.files import read_small_text
from .check_steps import is_loader
from .steps import RawStep, Sweep, TextPlace, raise_faults, sweep_list, sweep_range
from .yaml_values import (
    SWEEP_LIST,
    SWEEP_RANGE,
    PlainLoader,
    place_of,
    place_of_error,
    problem_of,
)


class SweepLoader(PlainLoader):
    """Loader of plain values and sweeps."""

    more_tags = (SWEEP_LIST, SWEEP_RANGE)

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, name)
        self._sweeps: list[Sweep] = []

    def construct_sweep(self, node: yaml.Node) -> Sweep | None:
        """Sweep of a node: a list of values or a range of numbers. If invalid, None and a fault."""
        place = place_of(self.file, node)
        try:
            sweep = replace(self._sweep_of(node), place=place)
        except UsageError as error:
            self.faults.append(place.fault(str(error)))
            return None
        self._sweeps.append(sweep)
        return sweep

    def _sweep_of(self, node: yaml.Node) -> Sweep:
        if node.tag == SWEEP_LIST:
            if not isinstance(node, yaml.SequenceNode):
                raise UsageError(f"{SWEEP_LIST} needs a list of values")
            return sweep_list(self.construct_sequence(node, deep=True))
        ends = self.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else {}
        if sorted(map(str, ends)) != ["start", "step", "stop"]:
            keys = f", not {', '.join(map(str, ends))}" if ends else ""
            raise UsageError(f"{SWEEP_RANGE} needs start, stop and step{keys}")
        return sweep_range(ends["start"], ends["stop"], ends["step"])

    def check_sweeps(self, steps: list[RawStep]) -> None:
        """Check that each sweep is the whole value of a method's parameter."""
        parameters = [s.content.get("parameters") for s in steps if not is_loader(s.content)]
        values = [v for each in parameters if isinstance(each, dict) for v in each.values()]
        for sweep in self._sweeps:
            if not any(sweep is value for value in values):
                text = (
                    "a sweep must be the whole value of one parameter of a method: lists, "
                    "mappings and the loader cannot contain one"
                )
                self.faults.append(sweep.place.fault(text))


SweepLoader.add_constructor(SWEEP_LIST, SweepLoader.construct_sweep)
SweepLoader.add_constructor(SWEEP_RANGE, SweepLoader.construct_sweep)


MAX_BYTES = 2**20
"""Largest pipeline file. Pipelines have a few kB, and PyYAML reads about 100 kB a second."""


def read_pipeline_file(path: str | os.PathLike[str]) -> list[RawStep]:
    """Read the steps of a pipeline file without checking them against methods.

    Parameters
    ----------
    path : path-like
        A YAML list of mappings with the keys method, module_path, parameters,
        save_result, id and side_outputs.

    Returns
    -------
    list of RawStep

    Raises
    ------
    PipelineError
        If the file cannot be read or is not such a list, naming all faults of its YAML.
    """
    if not os.fspath(path):
        raise PipelineError("the path of the pipeline file is empty")
    file = Path(path)
    try:
        text = read_small_text(file, MAX_BYTES)
    except FileNotFoundError:
        if file.is_symlink():
            raise PipelineError(
                f"the pipeline file {file} is a link to {file.readlink()}, which does not exist"
            ) from None
        raise PipelineError(f"the pipeline file {file} does not exist{_similar(file)}") from None
    except UnicodeDecodeError:
        raise PipelineError(
            f"cannot read the pipeline file {file}: it is not text in UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PipelineError(f"cannot read the pipeline file {file}: {reason}") from None
    return read_pipeline_text(text, file.name)


def read_pipeline_text(text: str, name: str) -> list[RawStep]:
    """Read the steps of a pipeline from the text of a file. See `read_pipeline_file`."""
    try:
        loader = SweepLoader(text, name)
        root = loader.get_single_node()
        if root is None:
            raise PipelineError("the file is empty: a pipeline is a list of methods", name)
        if not isinstance(root, yaml.SequenceNode):
            text = "a pipeline must be a YAML list whose entries begin with '- method: ...'"
            raise place_of(name, root).fault(text)
        loader.faults += [
            place_of(name, node).fault("a step must be a mapping with the key 'method'")
            for node in root.value
            if not isinstance(node, yaml.MappingNode)
        ]
        loader.check(root)
        raise_faults(loader.faults, name)
        steps = [_read_step(loader, node) for node in root.value]
        loader.check_sweeps(steps)
        raise_faults(loader.faults, name)
        return steps
    except yaml.YAMLError as error:
        raise place_of_error(name, error).fault(f"not valid YAML: {problem_of(error)}") from None
    except RecursionError:
        raise PipelineError("its lists and mappings are nested too deeply", name) from None


def _read_step(loader: SweepLoader, node: yaml.Node) -> RawStep:
    """Read one entry of the list."""
    places = {"": place_of(loader.file, node)}
    _note_places(loader, node, "", places)
    return RawStep(loader.construct_object(node, deep=True), places)


def _note_places(
    loader: SweepLoader, node: yaml.Node, prefix: str, places: dict[str, TextPlace]
) -> None:
    """Note the place of each key of a mapping, and of the keys in its values."""
    if not isinstance(node, yaml.MappingNode):
        return
    loader.flatten_mapping(node)  # merge keys (<<) come before the mapping's own keys
    for key_node, value_node in node.value:
        places[f"{prefix}{key_node.value}"] = place_of(loader.file, key_node)
        _note_places(loader, value_node, f"{prefix}{key_node.value}.", places)


def _similar(file: Path) -> str:
    try:
        names = [p.name for p in file.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except OSError:
        return ""
    return nearest(file.name, names)
