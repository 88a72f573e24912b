"""Pipeline files: YAML in httomo's form, read safely, with the place of each key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from ..core.parameters import nearest
from ..errors import PipelineError, UsageError
from ..system.files import read_small_text
from .steps import RawStep, Sweep, TextPlace, sweep_list, sweep_range
from .yaml_values import (
    FAULTY,
    SWEEP_LIST,
    SWEEP_RANGE,
    NodeCheck,
    PlainLoader,
    place_of,
    place_of_error,
    problem_of,
)


class SweepLoader(PlainLoader):
    """Loader of plain values, and of sweeps among them."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self._file = file
        self._made: list[Sweep] = []
        self._faults: list[PipelineError] = []

    more_tags = (SWEEP_LIST, SWEEP_RANGE)

    def construct_sweep(self, node: yaml.Node) -> Any:
        """Sweep of a node: a list of values, or a range of numbers.

        `FAULTY`, and a fault, if it is neither, or has no values or too many.
        """
        place = place_of(self._file, node)
        try:
            values = self._sweep_of(node)
        except UsageError as error:
            self._faults.append(PipelineError(str(error), place.where, place.pointer))
            return FAULTY
        if values is FAULTY:
            return FAULTY
        self._made.append(Sweep(values.values, place))
        return self._made[-1]

    def _sweep_of(self, node: yaml.Node) -> Any:
        if node.tag == SWEEP_LIST:
            if not isinstance(node, yaml.SequenceNode):
                raise UsageError(f"{SWEEP_LIST} is followed by a list of values")
            values = self.construct_sequence(node, deep=True)
            return FAULTY if FAULTY in values else sweep_list(values)
        ends = self.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else {}
        if sorted(map(str, ends)) != ["start", "step", "stop"]:
            given = f", not {', '.join(map(str, ends))}" if ends else ""
            raise UsageError(f"{SWEEP_RANGE} is followed by start, stop and step{given}")
        is_faulty = FAULTY in ends.values()
        return FAULTY if is_faulty else sweep_range(ends["start"], ends["stop"], ends["step"])

    def faults_in(self, steps: list[RawStep]) -> list[PipelineError]:
        """Faults of the sweeps in steps: each is the whole value of a parameter."""
        parameters = [step.content.get("parameters") for step in steps]
        values = [v for each in parameters if isinstance(each, dict) for v in each.values()]
        text = (
            "a sweep is the whole value of one parameter of a method: it stands neither within a "
            "list or a mapping, nor in the loader"
        )
        return self._faults + [
            PipelineError(text, sweep.place.where, sweep.place.pointer)
            for sweep in self._made
            if not any(sweep is value for value in values)
        ]


SweepLoader.add_constructor(SWEEP_LIST, SweepLoader.construct_sweep)
SweepLoader.add_constructor(SWEEP_RANGE, SweepLoader.construct_sweep)


MAX_BYTES = 2**20
"""Largest pipeline file: PyYAML reads some 100 kB a second, and pipelines have a few."""


def read_pipeline_file(
    path: str | os.PathLike[str],
) -> tuple[list[RawStep], list[PipelineError]]:
    """Read the steps of a pipeline file, without checking their content.

    Parameters
    ----------
    path : path-like
        A YAML list of mappings with the keys method, module_path, parameters,
        save_result, id and side_outputs.

    Returns
    -------
    (list of RawStep, list of PipelineError)
        The steps, and the faults that leave the rest of the file readable: keys that stand
        twice or are no names, tags that plain YAML does not have, values that are none.

    Raises
    ------
    PipelineError
        If the file cannot be read or is not such a list.
    """
    if not os.fspath(path):
        raise PipelineError("the path of the pipeline file is empty")
    file = Path(path)
    try:
        text = read_small_text(file, MAX_BYTES)
    except FileNotFoundError:
        if file.is_symlink():
            raise PipelineError(
                f"the pipeline file {file} is a link to {file.readlink()}, which is not there"
            ) from None
        raise PipelineError(f"there is no pipeline file {file}{_others(file)}") from None
    except UnicodeDecodeError:
        raise PipelineError(
            f"cannot read the pipeline file {file}: it is not text in UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PipelineError(f"cannot read the pipeline file {file}: {reason}") from None
    return read_pipeline_text(text, file.name)


def read_pipeline_text(text: str, name: str) -> tuple[list[RawStep], list[PipelineError]]:
    """Read the steps of a pipeline from the text of a file, whose name is for messages.

    Returns, and raises, what `read_pipeline_file` does.
    """
    try:
        loader = SweepLoader(text, name)
        root = loader.get_single_node()
        if root is None:
            raise PipelineError("the file is empty; a pipeline is a list of methods", name)
        if not isinstance(root, yaml.SequenceNode):
            place = place_of(name, root)
            raise PipelineError(
                "a pipeline is a YAML list, each entry beginning with '- method: ...'",
                place.where,
                place.pointer,
            )
        check = NodeCheck(name, loader)
        check.check(root)
        read = [_read_step(loader, node, name, check.faults) for node in root.value]
        steps = [step for step in read if step is not None]
        return steps, check.faults + loader.faults_in(steps)
    except yaml.YAMLError as error:
        place = place_of_error(name, error)
        text = f"not valid YAML: {problem_of(error)}"
        raise PipelineError(text, place.where, place.pointer) from None
    except RecursionError:
        raise PipelineError("its lists and mappings are nested too deeply", name) from None


def _read_step(
    loader: PlainLoader, node: yaml.Node, file: str, faults: list[PipelineError]
) -> RawStep | None:
    """One entry of the list; None if it is no step."""
    if not isinstance(node, yaml.MappingNode):
        place = place_of(file, node)
        if node not in loader.faulty:
            text = "a step is a mapping with the key 'method'"
            faults.append(PipelineError(text, place.where, place.pointer))
        return None
    places = {"": place_of(file, node)}
    _note_places(loader, node, file, "", places)
    content: dict[str, Any] = loader.construct_object(node, deep=True)
    faulty = {key for key, value in content.items() if _is_faulty(value)}
    parameters = content.get("parameters")
    if isinstance(parameters, dict):
        faulty -= {"parameters"}
        unread = {name for name, value in parameters.items() if _is_faulty(value)}
        content["parameters"] = {k: v for k, v in parameters.items() if k not in unread}
        faulty |= {f"parameters.{name}" for name in unread}
    return RawStep(
        {key: value for key, value in content.items() if key not in faulty},
        places,
        frozenset(faulty),
    )


def _note_places(
    loader: PlainLoader, node: yaml.Node, file: str, prefix: str, places: dict[str, TextPlace]
) -> None:
    """Note where each key of a mapping stands, and those in it."""
    if not isinstance(node, yaml.MappingNode):
        return
    loader.flatten_mapping(node)  # merge keys (<<); their content comes before the mapping's own
    for key_node, value_node in node.value:
        places[f"{prefix}{key_node.value}"] = place_of(file, key_node)
        _note_places(loader, value_node, file, f"{prefix}{key_node.value}.", places)


def _is_faulty(value: Any) -> bool:
    """True if a value, or one in it, could not be read."""
    if isinstance(value, dict):
        return any(_is_faulty(each) for each in value.values())
    if isinstance(value, list):
        return any(_is_faulty(each) for each in value)
    return value is FAULTY


def _others(file: Path) -> str:
    try:
        names = [p.name for p in file.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except OSError:
        return ""
    return nearest(file.name, names)
