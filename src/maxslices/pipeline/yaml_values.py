"""Values written in YAML: plain ones, each checked before it is made.

YAML can name Python's classes, refer to itself and stand for more than a computer holds. Of all
that, plain values are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import yaml

from ..errors import PipelineError, UsageError
from .steps import TextPlace

MAX_VALUES = 100_000
"""Most values of a file with its aliases written out: far more than pipelines have, and few enough
to be read at once. Aliases of aliases can stand for billions."""
_LARGEST = 2**63
"""Whole numbers of this size and more are refused: NumPy's largest have 64 bits."""
_MAX_LETTERS = 400
"""Most letters of a number. The largest one that a computer has (1.8e308) has 309 digits."""
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {
    f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")
}
SWEEP_LIST, SWEEP_RANGE = "!Sweep", "!SweepRange"
"""Tags of httomo for a parameter with several values."""
_NAME_TAGS = (f"{_TAG}str", f"{_TAG}merge")


FAULTY = object()
"""Stands for a value that could not be read."""


class PlainLoader(yaml.SafeLoader):
    """Loader of plain values: what looks like a date stays text."""

    faulty: set[yaml.Node]
    """Nodes that `NodeCheck` finds faulty: each becomes `FAULTY`."""
    more_tags: ClassVar[tuple[str, ...]] = ()
    """Tags beyond those of plain values, whose constructors check their nodes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.faulty = set()

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Value of a node."""
        if node in self.faulty:
            return FAULTY
        return super().construct_object(node, deep)

    def resolved(self, text: str) -> str:
        """Tag of unquoted text."""
        tag: str = self.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        return tag

    yaml_implicit_resolvers = {}  # noqa: RUF012  (declared so by PyYAML)


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


class NodeCheck:
    """Check of every node of a file, before any is turned into a value."""

    def __init__(self, file: str, loader: PlainLoader) -> None:
        self._file = file
        self._loader = loader
        self._sizes: dict[yaml.Node, int] = {}
        self.faults: list[PipelineError] = []

    def check(self, node: yaml.Node) -> int:
        """Check a node and those in it; the number of its values, aliases written out.

        Faults are collected: keys that stand twice or are no names, tags that plain YAML does
        not have, text and numbers that are none.

        Raises
        ------
        PipelineError
            If the values are too many, or a node contains itself.
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
            node.value = [pair for pair in node.value if pair[0] not in self._loader.faulty]
        elif isinstance(node, yaml.SequenceNode):
            size += sum(map(self.check, node.value))
        if size > MAX_VALUES:
            raise self._error(f"its aliases stand for more than {MAX_VALUES:,} values", node)
        self._sizes[node] = size
        return size

    def _check_tag(self, node: yaml.Node) -> None:
        try:
            self._check_value(node)
        except PipelineError as fault:
            self.faults.append(fault)
            self._loader.faulty.add(node)

    def _check_value(self, node: yaml.Node) -> None:
        tag = node.tag
        if tag in self._loader.more_tags:
            return
        if tag not in _PLAIN_TAGS:
            shown = tag.replace(_TAG, "!!")
            raise self._error(f"the tag {shown} is not supported: give plain values", node)
        if not isinstance(node, yaml.ScalarNode):
            return
        self._check_text(node)
        plain = self._loader.resolved(node.value)
        if tag != f"{_TAG}str":
            if tag != plain and not (tag == f"{_TAG}float" and plain == f"{_TAG}int"):
                shown = tag.replace(_TAG, "!!")
                raise self._error(f"{_short(node.value)} is not of the type {shown}", node)
            self._check_number(node)
        if node.style is None and _resolved_in_yaml_1_1(node.value) != plain:
            raise self._error(
                f"{_short(node.value)} is read differently by YAML 1.1, as httomo does, and 1.2: "
                "write a plain number, true or false, or text in quotes",
                node,
            )

    def _check_text(self, node: yaml.ScalarNode) -> None:
        """Check that text is text: YAML's escapes can also write half a character."""
        for character in node.value:
            if character == "\0" or 0xD800 <= ord(character) < 0xE000:
                what = f"a character is written that no text has ({character!a})"
                raise self._error(what, node)

    def _check_number(self, node: yaml.ScalarNode) -> None:
        """Check that a number is one that the computer has."""
        if node.tag not in (f"{_TAG}int", f"{_TAG}float"):
            return
        too_large = self._error(f"the number {_short(node.value)} is too large", node)
        if len(node.value) > _MAX_LETTERS:
            raise too_large
        try:
            value = self._loader.construct_object(node)
        except (ValueError, OverflowError):
            raise self._error(f"{_short(node.value)} is not a number", node) from None
        if isinstance(value, int) and abs(value) >= _LARGEST:
            raise too_large

    def _check_keys(self, node: yaml.MappingNode) -> None:
        """Check the keys of a mapping, and take out what cannot be a key."""
        first: dict[str, yaml.Node] = {}
        named = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _NAME_TAGS:
                shown = key.value if isinstance(key, yaml.ScalarNode) else "that is not text"
                text = f"the key {shown} must be a name; quotes make it one"
                self.faults.append(self._error(text, key))
                continue
            if key.value in first:
                line = first[key.value].start_mark.line + 1
                text = f"the key {key.value!r} stands twice; first in line {line}"
                self.faults.append(self._error(text, key))
            first[key.value] = key
            named.append((key, value))
        node.value = named

    def _error(self, text: str, node: yaml.Node) -> PipelineError:
        place = place_of(self._file, node)
        return PipelineError(text, place.where, place.pointer)


def _resolved_in_yaml_1_1(text: str) -> str:
    """Tag that PyYAML gives unquoted text by itself; dates are text."""
    resolver = yaml.resolver.Resolver()
    tag: str = resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return tag if tag in _PLAIN_TAGS else f"{_TAG}str"


def is_ambiguous(text: str) -> bool:
    """True if unquoted text is not read as text."""
    return PlainLoader("").resolved(text) != f"{_TAG}str"


def read_value(text: str, name: str) -> Any:
    """Read one value written in YAML.

    Parameters
    ----------
    text : str
        The value.
    name : str
        What it is, for messages.

    Raises
    ------
    PipelineError
        If it is not a plain value of YAML.
    """
    try:
        loader = PlainLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        check = NodeCheck(name, loader)
        try:
            check.check(root)
        except PipelineError as fault:
            check.faults.insert(0, fault)
        if check.faults:  # without a pointer, as the value is a line of a command or less
            raise PipelineError(str(check.faults[0]).splitlines()[0])
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise PipelineError(f"not valid YAML: {problem_of(error)}", name) from None
    except RecursionError:
        raise PipelineError("its lists and mappings are nested too deeply", name) from None


def problem_of(error: yaml.YAMLError) -> str:
    """What is wrong with YAML that cannot be read."""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "another document" in problem:
        return "a second document begins here ('---'); a pipeline is one list"
    if "'\\t'" in problem:
        return "a tab stands here; YAML is indented with spaces"
    if "<block end>" in problem:
        return "this line is not indented as those before it, of which it seems to be one"
    if "mapping values are not allowed" in problem:
        return (
            "a key with a value cannot stand here: a colon is missing in the line before, or the "
            "line is indented wrongly"
        )
    return str(problem)


def place_of(file: str, node: yaml.Node) -> TextPlace:
    """TextPlace of a node in a file."""
    return _place_of_mark(file, node.start_mark)


def place_of_error(file: str, error: yaml.YAMLError) -> TextPlace:
    """TextPlace of YAML that cannot be read."""
    mark = getattr(error, "problem_mark", None)
    return TextPlace(file) if mark is None else _place_of_mark(file, mark)


def _place_of_mark(file: str, mark: yaml.Mark) -> TextPlace:
    where = f"{file}:{mark.line + 1}:{mark.column + 1}"
    return TextPlace(where, _pointer(mark))


_MOST_SHOWN = 150
"""Most characters of a line that are shown around a fault."""


def _pointer(mark: yaml.Mark) -> str:
    """The line of a mark, and a caret below it; empty if it cannot be printed."""
    line, _, caret = (mark.get_snippet(max_length=_MOST_SHOWN) or "").partition("\n")
    return f"{line.rstrip()}\n{caret}" if line.isprintable() and caret else ""


def _short(text: str) -> str:
    """Text for a message, shortened."""
    return repr(text) if len(text) <= 40 else f"{text[:30]!r}..."


def parse_parameters(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` arguments, with values in YAML.

    Raises
    ------
    UsageError
        If an argument has no name or no readable value, or a name is given twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(
                f"{text!r} is no parameter: write name=value, such as -p kernel_size=5"
            )
        if name in found:
            raise UsageError(f"the parameter {name} is given twice; the second is {text!r}")
        try:
            found[name] = read_value(value, f"-p {name}")
        except PipelineError as error:
            raise UsageError(f"{error}: write it as in YAML") from None
    return found
