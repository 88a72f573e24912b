"""Pipeline files: YAML in httomo's form, read safely and with the line of everything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from ..errors import PipelineError
from ..parameters import nearest
from .pipeline import RawStep


def read_pipeline_file(path: str | os.PathLike[str]) -> list[RawStep]:
    """Read the steps of a pipeline file; nothing of their content is checked yet.

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
    file = Path(path)
    name = file.name
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineError(f"there is no pipeline file {file}{_others(file)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise PipelineError(f"cannot read the pipeline file {file}: {reason}") from None
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            raise PipelineError("the file is empty; a pipeline is a list of methods", name)
        if not isinstance(root, yaml.SequenceNode):
            raise PipelineError(
                "a pipeline is a YAML list, each entry beginning with '- method: ...'",
                _place(name, root),
            )
        return [_read_step(loader, node, name) for node in root.value]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise PipelineError(f"not valid YAML: {problem}", where) from None
    finally:
        loader.dispose()


def _read_step(loader: yaml.SafeLoader, node: yaml.Node, file: str) -> RawStep:
    content, places = _read_mapping(loader, node, file, "a step is a mapping with the key 'method'")
    for key_node, value_node in node.value:
        if key_node.value == "parameters" and isinstance(value_node, yaml.MappingNode):
            content["parameters"], lines = _read_mapping(loader, value_node, file, "")
            places |= {f"parameters.{key}": place for key, place in lines.items() if key}
    return RawStep(content, places)


def _read_mapping(
    loader: yaml.SafeLoader, node: yaml.Node, file: str, otherwise: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a mapping's content, and the place of each key ("" for the mapping itself)."""
    if not isinstance(node, yaml.MappingNode):
        raise PipelineError(otherwise, _place(file, node))
    content: dict[str, Any] = {}
    places = {"": _place(file, node)}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        place = _place(file, key_node)
        if not isinstance(key, str):
            raise PipelineError(f"the key {key!r} must be a name", place)
        if key in content:
            first = places[key].rsplit(":", 1)[-1]
            raise PipelineError(f"the key {key!r} stands twice; first in line {first}", place)
        _refuse_duplicates(loader, value_node, file)
        content[key] = loader.construct_object(value_node, deep=True)
        places[key] = place
    return content, places


def _refuse_duplicates(loader: yaml.SafeLoader, node: yaml.Node, file: str) -> None:
    """Raise if a mapping anywhere below `node` has a key twice."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if key_node.value in seen:
                text = f"the key {key_node.value!r} stands twice"
                raise PipelineError(text, _place(file, key_node))
            seen.add(str(key_node.value))
            _refuse_duplicates(loader, value_node, file)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _refuse_duplicates(loader, child, file)


def _place(file: str, node: yaml.Node) -> str:
    return f"{file}:{node.start_mark.line + 1}"


def _others(file: Path) -> str:
    try:
        names = [p.name for p in file.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except OSError:
        return ""
    return nearest(file.name, names)
