"""Values that a method of theirs refuses, by the checks in its source, which is not imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .source_stubs import function_node

_CHECKS = ("__check_variable_type", "__check_if_positive_nonzero")
"""Functions of their ``misc.utils`` that look at one value and raise ValueError. Others look at the
data."""
_BUILTINS = {
    each.__name__: each for each in (abs, all, any, bool, float, int, isinstance, len, list, max)
} | {each.__name__: each for each in (min, str, tuple, type)}
"""What conditions on values may call."""
_MAX_DEPTH = 3
"""Functions within functions that are followed: theirs go two deep."""


def value_check(module: str, name: str) -> Callable[..., None] | None:
    """Make a function that raises ValueError for values that a method refuses.

    It follows the method's source as far as that depends on its parameters alone: calls of
    `_CHECKS`, conditions that end in ``raise ValueError``, and other functions of the module that
    parameters are handed on to.

    Returns
    -------
    function or None
        None if there is no source.
    """
    if function_node(module, name) is None:
        return None

    def check(**parameters: Any) -> None:
        # "auto" is filled in before the method sees it.
        known = {k: v for k, v in parameters.items() if not (isinstance(v, str) and v == "auto")}
        _Follower(module).follow(name, known, _MAX_DEPTH)

    return check


class _Follower:
    """Follows functions of a module, with the values that are known."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._checks = _checks_of(f"{module.partition('.')[0]}.misc.utils")

    def follow(self, name: str, given: Mapping[str, Any], depth: int) -> None:
        """Follow a function, given parameters; raises the ValueError that it would raise."""
        node = function_node(self._module, name)
        if node is not None and depth:
            self._follow_all(node.body, {**given, "methods_name": name}, depth)

    def _follow_all(self, body: list[ast.stmt], names: dict[str, Any], depth: int) -> None:
        for statement in body:
            if isinstance(statement, ast.If) and _is_known(statement.test, names):
                chosen = statement.body if _value(statement.test, names) else statement.orelse
                self._follow_all(chosen, names, depth)
            elif isinstance(statement, ast.Raise):
                self._refuse(statement, names)
            else:
                self._follow_calls(statement, names, depth)
                _note_values(statement, names)

    def _refuse(self, statement: ast.Raise, names: dict[str, Any]) -> None:
        error = statement.exc
        if isinstance(error, ast.Call) and isinstance(error.func, ast.Name) and error.args:
            text = error.args[0]
            if error.func.id == "ValueError" and _is_known(text, names):
                raise ValueError(" ".join(str(_value(text, names)).split()))

    def _follow_calls(self, statement: ast.stmt, names: dict[str, Any], depth: int) -> None:
        """Make the checks of a statement, and follow what it hands parameters on to."""
        if not isinstance(statement, ast.Expr | ast.Return | ast.Assign):
            return
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return
        check = self._checks.get(call.func.id)
        node = check or function_node(self._module, call.func.id)
        if node is None or any(each.arg is None for each in call.keywords):
            return
        parameters = [each.arg for each in node.args.args]
        given = dict(zip(parameters, call.args, strict=False))
        given |= {str(each.arg): each.value for each in call.keywords}
        known = {key: _value(v, names) for key, v in given.items() if _is_known(v, names)}
        if check is None:
            self.follow(call.func.id, known, depth - 1)
        elif len(known) == len(given):
            _run(check, known)


def _checks_of(module: str) -> dict[str, ast.FunctionDef]:
    found = {name: function_node(module, name) for name in _CHECKS}
    return {name: node for name, node in found.items() if node is not None}


def _run(check: ast.FunctionDef, given: dict[str, Any]) -> None:
    """Call a check; it needs NumPy alone."""
    namespace: dict[str, Any] = {"np": np, "__name__": "<check>"}
    exec(compile(ast.Module(body=[check], type_ignores=[]), "<check>", "exec"), namespace)
    try:
        namespace[check.name](**given)
    except ValueError as error:  # NumPy's numbers do not come from pipeline files
        text = re.sub(r", <class 'numpy\.\w+'>", "", str(error))
        raise ValueError(re.sub(r"<class '(\w+)'>", r"\1", text)) from None


def _note_values(statement: ast.stmt, names: dict[str, Any]) -> None:
    """Note the value that a statement gives to a name; forget those that are not known."""
    assigned = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    value = getattr(statement, "value", None)
    is_one = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    known = is_one and len(assigned) == 1 and isinstance(value, ast.expr)
    found = {}
    if known and isinstance(value, ast.expr) and _is_known(value, names):
        found = dict.fromkeys(assigned, _value(value, names))
    for name in assigned:
        names.pop(name, None)
    names |= found


def _is_known(expression: ast.expr, names: Mapping[str, Any]) -> bool:
    """True if an expression can be evaluated: of known names and harmless functions alone."""
    own = {
        node.id
        for node in ast.walk(expression)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(expression):
        if isinstance(node, ast.Attribute) and not _is_numpy_type(node):
            return False
        if isinstance(node, ast.Lambda | ast.NamedExpr):
            return False
        if isinstance(node, ast.Name) and node.id not in {*names, *_BUILTINS, *own, "np"}:
            return False
    try:
        _value(expression, names)
    except (TypeError, ValueError, LookupError, ArithmeticError):  # made for another value
        return False
    return True


def _is_numpy_type(node: ast.Attribute) -> bool:
    is_of_numpy = isinstance(node.value, ast.Name) and node.value.id == "np"
    return is_of_numpy and isinstance(getattr(np, node.attr, None), type)


def _value(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    code = compile(ast.Expression(expression), "<check>", "eval")
    return eval(code, {"__builtins__": _BUILTINS, "np": np, **names})
