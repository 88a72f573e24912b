"""Values that a method of theirs refuses, by the checks at the beginning of its source."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from .source_stubs import function_node

_CHECKS = ("__check_variable_type", "__check_if_positive_nonzero")
"""Functions of their ``misc.utils`` that look at one value and raise ValueError. Others look at the
data."""


def value_check(module: str, name: str) -> Callable[..., None] | None:
    """Make a function that raises ValueError for values that a method refuses.

    Returns
    -------
    function or None
        None if the method checks none of its values.
    """
    node = function_node(module, name)
    package = module.partition(".")[0]
    helpers = _helpers(f"{package}.misc.utils")
    if node is None:
        return None
    calls = [
        (helpers[each.value.func.id], each.value.args)
        for each in node.body
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Name)
        and each.value.func.id in helpers
        and not each.value.keywords
    ]
    if not calls:
        return None

    def check(**parameters: Any) -> None:
        names = {**parameters, "methods_name": name}
        for helper, arguments in calls:
            if isinstance(arguments[0], ast.Name) and names.get(arguments[0].id, "auto") != "auto":
                helper(*(_value(argument, names) for argument in arguments))

    return check


def _helpers(module: str) -> dict[str, Callable[..., None]]:
    """Checks that a module defines; they need NumPy alone."""
    found: dict[str, Callable[..., None]] = {}
    for name in _CHECKS:
        node = function_node(module, name)
        if node is not None:
            namespace: dict[str, Any] = {"np": np, "__name__": module}
            code = compile(ast.Module(body=[node], type_ignores=[]), module, "exec")
            exec(code, namespace)
            found[name] = namespace[name]
    return found


def _value(expression: ast.expr, names: dict[str, Any]) -> Any:
    """Value of an argument: a parameter, or a list of types or of choices."""
    return eval(compile(ast.Expression(expression), "<check>", "eval"), {}, names)
