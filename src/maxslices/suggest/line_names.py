"""What a line of code calls the array that it makes."""

from __future__ import annotations

import ast
import builtins
import keyword
import linecache
import re
from functools import lru_cache

from ..core import named_method
from ..devices import method_call
from ..trial import trial

_TAKEN = {"m", "shape", "dtype", "angles", "rows", "columns", "math", "next_fast_len"}
"""Names that a ledger function uses itself."""


@lru_cache(maxsize=256)
def _statements(filename: str) -> tuple[ast.stmt, ...]:
    text = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def statement_at(filename: str, line: int) -> ast.stmt | None:
    """Innermost statement that covers a line of a file; None where its source is not there."""
    covering = [
        node
        for node in _statements(filename)
        if node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(covering, key=lambda node: node.lineno, default=None)


def assigned_name(filename: str, line: int) -> str:
    """Name that the statement at a line assigns to; "result" where it returns; else ""."""
    statement = statement_at(filename, line)
    if isinstance(statement, ast.Return):
        return "result"
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        target = statement.target
    if isinstance(target, ast.Name):
        return target.id
    return ""


def as_variable(name: str) -> str:
    """Name for a variable of a ledger function."""
    name = re.sub(r"\W", "_", name).lower().strip("_") or "temporary"
    is_taken = name in _TAKEN or keyword.iskeyword(name) or hasattr(builtins, name)
    return f"{name}_" if is_taken or name[0].isdigit() else name


def is_own_call(filename: str) -> bool:
    """True if a line is where this package calls methods: the method itself is a library's."""
    return filename in (trial.__file__, method_call.__file__, named_method.__file__)


def code_at(filename: str, line: int) -> str:
    """Text of a line, shortened."""
    text = linecache.getline(filename, line).strip()
    return text if len(text) <= 60 else text[:57].rstrip() + "..."
