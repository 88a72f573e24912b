"""Pipeline files: YAML in httomo's form, read safely, with the line of each key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from ..errors import PipelineError
from ..registry.parameters import nearest
from ..system.small_files import read_small_text
from .steps import RawStep, Sweep
from .yaml_sweeps import SweepLoader
from .yaml_values import NodeCheck, PlainLoader, place_of, problem_of

MAX_BYTES = 2**20
"""Largest pipeline file: PyYAML reads some 100 kB a second, and pipelines have a few."""


def read_pipeline_file(path: str | os.PathLike[str]) -> list[RawStep]:
    """Read the steps of a pipeline file, without checking their content.

    Parameters
    ----------
    path : path-like
        A YAML list of mappings with the keys method, module_path, parameters,
        save_result, id and side_outputs.

    Raises
    ------
    PipelineError
        If the file cannot be read or is not such a list, has a key twice, or a tag that
        plain YAML does not have.
    """
    if not os.fspath(path):
        raise PipelineError("the path of the pipeline file is empty")
    file = Path(path)
    name = file.name
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
    try:
        loader = SweepLoader(text, name)
        root = loader.get_single_node()
        if root is None:
            raise PipelineError("the file is empty; a pipeline is a list of methods", name)
        if not isinstance(root, yaml.SequenceNode):
            raise PipelineError(
                "a pipeline is a YAML list, each entry beginning with '- method: ...'",
                place_of(name, root),
            )
        NodeCheck(name, loader, sweeps=True).check(root)
        steps = [_read_step(loader, node, name) for node in root.value]
        _check_sweeps(steps, loader.sweeps)
        return steps
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        raise PipelineError(f"not valid YAML: {problem_of(error)}", where) from None
    except RecursionError:
        raise PipelineError("its lists and mappings are nested too deeply", name) from None


def _check_sweeps(steps: list[RawStep], sweeps: list[Sweep]) -> None:
    """Check that each sweep is the whole value of a parameter."""
    parameters = [step.content.get("parameters") for step in steps]
    values = [v for each in parameters if isinstance(each, dict) for v in each.values()]
    for sweep in sweeps:
        if not any(sweep is value for value in values):
            raise PipelineError(
                "a sweep is the whole value of one parameter of a step", sweep.place
            )


def _read_step(loader: PlainLoader, node: yaml.Node, file: str) -> RawStep:
    if not isinstance(node, yaml.MappingNode):
        raise PipelineError("a step is a mapping with the key 'method'", place_of(file, node))
    content, places = _read_mapping(loader, node, file)
    places[""] = place_of(file, node)
    for key_node, value_node in node.value:
        if key_node.value == "parameters" and isinstance(value_node, yaml.MappingNode):
            _, lines = _read_mapping(loader, value_node, file)
            places |= {f"parameters.{key}": place for key, place in lines.items()}
    return RawStep(content, places)


def _read_mapping(
    loader: PlainLoader, node: yaml.MappingNode, file: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Content of a mapping, and the place of each key."""
    loader.flatten_mapping(node)  # merge keys (<<); their content comes before the mapping's own
    content: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key_node, value_node in node.value:
        content[key_node.value] = loader.construct_object(value_node, deep=True)
        places[key_node.value] = place_of(file, key_node)
    return content, places


def _others(file: Path) -> str:
    try:
        names = [p.name for p in file.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except OSError:
        return ""
    return nearest(file.name, names)
