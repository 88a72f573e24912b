"""Read plain values in YAML, and check each node before it becomes a value.

YAML can also name Python's classes, contain itself, and expand to more values than fit in memory.
All of this is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import yaml

from ..errors import PipelineError, UsageError
from .steps import TextPlace, raise_faults

MAX_VALUES = 100_000
"""Most values of a file after expanding its aliases. Pipelines have far fewer, but aliases of
aliases can expand to billions."""
_LARGEST = 2**63
"""Integers from this one on are refused, because NumPy's have at most 64 bits."""
_MAX_LETTERS = 400
"""Most characters of a number. The largest float (1.8e308) has 309 digits."""
_TAG = "tag:yaml.org,2002:"
SWEEP_LIST, SWEEP_RANGE = "!Sweep", "!SweepRange"
"""Tags of httomo for a parameter with several values."""


class PlainLoader(yaml.SafeLoader):
    """Loader of plain values, whose nodes are checked before any is turned into a value.

    Text that looks like a date stays text.

    Parameters
    ----------
    text : str
        YAML.
    name : str
        Name of the file, for messages.
    """

    more_tags: ClassVar[tuple[str, ...]] = ()
    """Accepted tags in addition to those of plain values."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.file = name
        self.faults: list[PipelineError] = []
        self._sizes: dict[yaml.Node, int] = {}

    def resolved(self, text: str) -> str:
        """Tag of unquoted text."""
        tag: str = self.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        return tag

    yaml_implicit_resolvers = {}  # noqa: RUF012  (declared so by PyYAML)

    def check(self, node: yaml.Node) -> int:
        """Check a node and its children, and count its values with aliases written out.

        Repeated keys, keys that are not names, unsupported tags, and invalid text and numbers are
        added to `faults`.

        Raises
        ------
        PipelineError
            If there are too many values, or a node contains itself.
        """
        if node in self._sizes:
            if self._sizes[node] == 0:
                raise self._fault("an alias refers to a value that contains it", node)
            return self._sizes[node]
        self._sizes[node] = 0
        size = 1
        if isinstance(node, yaml.ScalarNode):
            if text := self._scalar_fault(node):
                self.faults.append(self._fault(text, node))
        elif node.tag not in (f"{_TAG}seq", f"{_TAG}map", *self.more_tags):
            self.faults.append(self._fault(_unsupported(node.tag), node))
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            size += sum(1 + self.check(value) for _, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            size += sum(map(self.check, node.value))
        if size > MAX_VALUES:
            raise self._fault(f"its aliases expand to more than {MAX_VALUES:,} values", node)
        self._sizes[node] = size
        return size

    def _scalar_fault(self, node: yaml.ScalarNode) -> str:
        """Fault of text or a number, or an empty string."""
        text = node.value
        tag = f"{_TAG}str" if node.style else self.resolved(text)
        if node.tag in self.more_tags:
            return ""
        if node.tag != tag:
            return _unsupported(node.tag)
        for character in text:
            if character == "\0" or 0xD800 <= ord(character) < 0xE000:  # escapes can write these
                return f"the character {character!a} is not allowed in text"
        if not node.style and _resolved_in_yaml_1_1(text) != tag:
            return (
                f"{_short(text)} means different values in YAML 1.1, which httomo reads, and 1.2: "
                "write a plain number, true or false, or text in quotes"
            )
        if tag in (f"{_TAG}int", f"{_TAG}float"):
            is_long = len(text) > _MAX_LETTERS
            if is_long or (tag.endswith("int") and abs(self.construct_object(node)) >= _LARGEST):
                return f"the number {_short(text)} is too large"
        return ""

    def _check_keys(self, node: yaml.MappingNode) -> None:
        """Check that the keys of a mapping are names, each of them once."""
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (
                f"{_TAG}str",
                f"{_TAG}merge",
            ):
                shown = f" {key.value}" if isinstance(key, yaml.ScalarNode) else ""
                text = f"the key{shown} must be text: put it in quotes"
                self.faults.append(self._fault(text, key))
            elif key.value in first:
                line = first[key.value].start_mark.line + 1
                text = f"the key {key.value!r} is repeated, first used in line {line}"
                self.faults.append(self._fault(text, key))
            elif text := self._scalar_fault(key):
                self.faults.append(self._fault(text, key))
            else:
                first[key.value] = key

    def _fault(self, text: str, node: yaml.Node) -> PipelineError:
        return place_of(self.file, node).fault(text)


for _name, _pattern, _first in (
    ("null", r"(~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("bool", r"(true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"([-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+)$", "-+0123456789"),
    ("float", r"[-+]?(\.\d+|\d+\.\d*|\d+(?=[eE]))([eE][-+]?\d+)?$", "-+.0123456789"),
    ("float", r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$", "-+."),
    ("merge", r"<<$", "<"),
):
    # The core schema of YAML 1.2, without octal numbers and leading zeros.
    PlainLoader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(_pattern), list(_first))


def _unsupported(tag: str) -> str:
    return f"the tag {tag.replace(_TAG, '!!')} is not supported: use plain values"


def _resolved_in_yaml_1_1(text: str) -> str:
    """Tag of unquoted text in YAML 1.1, with dates as text."""
    resolver = yaml.resolver.Resolver()
    tag: str = resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return f"{_TAG}str" if tag in (f"{_TAG}timestamp", f"{_TAG}value") else tag


def is_ambiguous(text: str) -> bool:
    """True if unquoted text would not be read as text."""
    return PlainLoader("", "").resolved(text) != f"{_TAG}str"


def read_value(text: str, name: str) -> Any:
    """Read one value written in YAML.

    Parameters
    ----------
    text : str
        The value.
    name : str
        Name of the value, for messages.

    Raises
    ------
    PipelineError
        If it is not a plain value of YAML.
    """
    try:
        loader = PlainLoader(text, name)
        root = loader.get_single_node()
        if root is None:
            return None
        try:
            loader.check(root)
            raise_faults(loader.faults[:1], name)
        except PipelineError as fault:  # without a pointer: the value is at most one line
            raise PipelineError(str(fault).splitlines()[0]) from None
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise PipelineError(f"not valid YAML: {problem_of(error)}", name) from None
    except RecursionError:
        raise PipelineError("its lists and mappings are nested too deeply", name) from None


def problem_of(error: yaml.YAMLError) -> str:
    """Fault of invalid YAML, in words."""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "another document" in problem:
        return "a second document begins here ('---'), but a pipeline is one list"
    if "'\\t'" in problem:
        return "YAML must be indented with spaces, not with tabs"
    if "<block end>" in problem:
        return "this line is not indented like the lines before it"
    if "mapping values are not allowed" in problem:
        return (
            "a key is not allowed here: the line before lacks a colon, or this line is indented "
            "wrongly"
        )
    return str(problem)


def place_of(file: str, node: yaml.Node) -> TextPlace:
    """Position of a node in a file."""
    return _place_of_mark(file, node.start_mark)


def place_of_error(file: str, error: yaml.YAMLError) -> TextPlace:
    """Position of a fault of invalid YAML."""
    mark = getattr(error, "problem_mark", None)
    return TextPlace(file) if mark is None else _place_of_mark(file, mark)


def _place_of_mark(file: str, mark: yaml.Mark) -> TextPlace:
    where = f"{file}:{mark.line + 1}:{mark.column + 1}"
    return TextPlace(where, _pointer(mark))


_MOST_SHOWN = 150
"""Most characters of a line to show around a fault."""


def _pointer(mark: yaml.Mark) -> str:
    """The line of a mark and a caret below it, or an empty string if not printable."""
    line, _, caret = (mark.get_snippet(max_length=_MOST_SHOWN) or "").partition("\n")
    return f"{line.rstrip()}\n{caret}" if line.isprintable() and caret else ""


def _short(text: str) -> str:
    """Shorten text for a message."""
    return repr(text) if len(text) <= 40 else f"{text[:30]!r}..."


def parse_parameters(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` arguments, with values in YAML.

    Raises
    ------
    UsageError
        If an argument has no name or no readable value, or a name is given twice.
    """
    parameters: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(
                f"{text!r} is not a parameter: write name=value, such as -p kernel_size=5"
            )
        if name in parameters:
            raise UsageError(f"the parameter {name} is repeated: {text!r}")
        try:
            parameters[name] = read_value(value, f"-p {name}")
        except PipelineError as error:
            raise UsageError(f"{error}: write it as in YAML") from None
    return parameters
