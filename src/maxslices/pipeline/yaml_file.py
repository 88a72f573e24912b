"""Pipeline files: YAML in httomo's form, read safely, with the line of each key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from ..errors import PipelineError
from ..registry.parameters import nearest
from .steps import RawStep

MAX_VALUES = 100_000
"""Most values of a file with its aliases written out: far more than pipelines have, and few enough
to be read at once. Aliases of aliases can stand for billions."""
MAX_DIGITS = 1000
"""Most digits of a whole number. Python refuses to read more than 4300
(``sys.int_info.default_max_str_digits``)."""
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {
    f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")
}
_NAME_TAGS = (f"{_TAG}str", f"{_TAG}merge")


class _Loader(yaml.SafeLoader):
    """Loader of plain values: what looks like a date stays text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (declared so by PyYAML)
        first: [(tag, pattern) for tag, pattern in entries if tag in _PLAIN_TAGS]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


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
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if file.is_symlink():
            raise PipelineError(
                f"the pipeline file {file} is a link to {file.readlink()}, which is not there"
            ) from None
        raise PipelineError(f"there is no pipeline file {file}{_others(file)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise PipelineError(f"cannot read the pipeline file {file}: {reason}") from None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise PipelineError("the file is empty; a pipeline is a list of methods", name)
        if not isinstance(root, yaml.SequenceNode):
            raise PipelineError(
                "a pipeline is a YAML list, each entry beginning with '- method: ...'",
                _place(name, root),
            )
        _NodeCheck(name, loader).check(root)
        return [_read_step(loader, node, name) for node in root.value]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        if "another document" in problem:
            problem = "a second document begins here ('---'); a pipeline is one list"
        elif "'\\t'" in problem:
            problem = "a tab stands here; YAML is indented with spaces"
        raise PipelineError(f"not valid YAML: {problem}", where) from None
    except RecursionError:
        raise PipelineError("its lists and mappings are nested too deeply", name) from None


class _NodeCheck:
    """Check of every node of a file, before any is turned into a value."""

    def __init__(self, file: str, loader: _Loader) -> None:
        self._file = file
        self._loader = loader
        self._sizes: dict[yaml.Node, int] = {}

    def check(self, node: yaml.Node) -> int:
        """Check a node and those in it; the number of its values, aliases written out.

        Raises
        ------
        PipelineError
            If these are too many, a node contains itself, a key stands twice, or a tag is
            not one of plain YAML.
        """
        if node in self._sizes:
            if self._sizes[node] == 0:
                raise self._error("an alias refers to what it is itself a part of", node)
            return self._sizes[node]
        self._sizes[node] = 0
        self._check_tag(node)
        size = 1
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            size += sum(self.check(child) for pair in node.value for child in pair)
        elif isinstance(node, yaml.SequenceNode):
            size += sum(map(self.check, node.value))
        if size > MAX_VALUES:
            raise self._error(f"its aliases stand for more than {MAX_VALUES:,} values", node)
        self._sizes[node] = size
        return size

    def _check_tag(self, node: yaml.Node) -> None:
        tag = node.tag
        if tag in ("!Sweep", "!SweepRange"):
            raise self._error(f"sweeps ({tag}) are not supported: give one value", node)
        if tag not in _PLAIN_TAGS:
            shown = tag.replace(_TAG, "!!")
            raise self._error(f"the tag {shown} is not supported: give plain values", node)
        if isinstance(node, yaml.ScalarNode) and tag != f"{_TAG}str":
            if tag == f"{_TAG}int" and len(node.value) > MAX_DIGITS:
                raise self._error("a number has too many digits", node)
            plain = self._loader.resolve(  # type: ignore[no-untyped-call]
                yaml.ScalarNode, node.value, (True, False)
            )
            if tag != plain and not (tag == f"{_TAG}float" and plain == f"{_TAG}int"):
                shown = tag.replace(_TAG, "!!")
                raise self._error(f"{node.value!r} is not of the type {shown}", node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _NAME_TAGS:
                shown = key.value if isinstance(key, yaml.ScalarNode) else "that is not text"
                raise self._error(f"the key {shown} must be a name; quotes make it one", key)
            if key.value in first:
                line = first[key.value].start_mark.line + 1
                raise self._error(f"the key {key.value!r} stands twice; first in line {line}", key)
            first[key.value] = key

    def _error(self, text: str, node: yaml.Node) -> PipelineError:
        return PipelineError(text, _place(self._file, node))


def _read_step(loader: _Loader, node: yaml.Node, file: str) -> RawStep:
    if not isinstance(node, yaml.MappingNode):
        raise PipelineError("a step is a mapping with the key 'method'", _place(file, node))
    content, places = _read_mapping(loader, node, file)
    places[""] = _place(file, node)
    for key_node, value_node in node.value:
        if key_node.value == "parameters" and isinstance(value_node, yaml.MappingNode):
            _, lines = _read_mapping(loader, value_node, file)
            places |= {f"parameters.{key}": place for key, place in lines.items()}
    return RawStep(content, places)


def _read_mapping(
    loader: _Loader, node: yaml.MappingNode, file: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Content of a mapping, and the place of each key."""
    loader.flatten_mapping(node)  # merge keys (<<); their content comes before the mapping's own
    content: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key_node, value_node in node.value:
        content[key_node.value] = loader.construct_object(value_node, deep=True)
        places[key_node.value] = _place(file, key_node)
    return content, places


def _place(file: str, node: yaml.Node) -> str:
    return f"{file}:{node.start_mark.line + 1}"


def _others(file: Path) -> str:
    try:
        names = [p.name for p in file.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except OSError:
        return ""
    return nearest(file.name, names)
