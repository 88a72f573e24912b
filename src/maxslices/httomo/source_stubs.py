"""Signatures and arithmetic functions read from Python source without importing it.

Importing httomolibgpu needs CuPy and takes seconds. Planning needs neither.
"""

from __future__ import annotations
import __future__

import ast
import copy
import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

_IMPORTABLE = sys.stdlib_module_names | {"numpy"}
"""Packages that are imported when source is read; others are imported at their first use."""


def source_file(module: str) -> Path | None:
    """Find the source file of a module without importing its packages.

    Parameters
    ----------
    module : str
        Dotted name.

    Returns
    -------
    pathlib.Path or None
        None if it is not installed, or has no Python source.
    """
    package, *rest = module.split(".")
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, *rest)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if rest and file.is_file():
                return file
    return None


def make_stub(module: str, name: str) -> Callable[..., Any] | None:
    """Create an empty function with the signature and docstring of one in a module's source.

    Its annotations are text, as with ``from __future__ import annotations``. `inspect.getsource`
    returns the source of the original function.

    Returns
    -------
    function or None
        None if the module is not installed or lacks the function.

    Raises
    ------
    Exception
        Any error of default values that need an import.
    """
    file, node = source_file(module), function_node(module, name)
    if file is None or node is None:
        return None
    tree = _parsed(file)
    empty = copy.copy(node)
    empty.decorator_list = []
    if ast.get_docstring(node) is not None:
        empty.body = node.body[:1]
    else:
        empty.body = [ast.copy_location(ast.Pass(), node.body[0])]
    namespace: dict[str, Any] = {"__name__": module}
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom) and _is_importable(statement):
            _execute([statement], file, namespace)
    _execute([empty], file, namespace)
    function: Callable[..., Any] = namespace[name]
    return function


def function_node(module: str, name: str) -> ast.FunctionDef | None:
    """Definition of a function in a module's source; None if it or the module is missing."""
    file = source_file(module)
    tree = None if file is None else _parsed(file)
    functions = [] if tree is None else [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    return next((n for n in reversed(functions) if n.name == name), None)


def namespace_of(module: str) -> dict[str, Any]:
    """Run a module's source with lazy imports.

    Returns
    -------
    dict
        Namespace of the module; empty if it is not installed.
    """
    file = source_file(module)
    return {} if file is None else _namespace(module, file)


@cache
def _namespace(module: str, file: Path) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": module, "__file__": str(file)}
    for statement in _parsed(file).body:
        if not isinstance(statement, ast.Import | ast.ImportFrom) or _is_importable(statement):
            _execute([statement], file, namespace)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                bound = alias.asname or alias.name.partition(".")[0]
                namespace[bound] = _LazyImport(alias.name if alias.asname else bound)
        else:
            for alias in statement.names:
                namespace[alias.asname or alias.name] = _LazyImport(
                    statement.module or "", alias.name
                )
    return namespace


class _LazyImport:
    """Placeholder for an imported module or name, imported at a call or attribute access."""

    def __init__(self, module: str, name: str | None = None) -> None:
        self._target = module, name

    def _resolved(self) -> Any:
        module, name = self._target
        imported = importlib.import_module(module)
        return imported if name is None else getattr(imported, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolved()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._resolved(), name)


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def _is_importable(statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.ImportFrom):
        names = [statement.module or ""] if not statement.level else [""]
    else:
        names = [alias.name for alias in statement.names]
    return all(name.partition(".")[0] in _IMPORTABLE for name in names)


def _execute(statements: list[ast.stmt], file: Path, namespace: dict[str, Any]) -> None:
    code: CodeType = compile(
        ast.Module(body=statements, type_ignores=[]),
        str(file),
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    exec(code, namespace)
