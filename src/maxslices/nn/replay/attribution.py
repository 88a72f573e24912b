"""Module of the model and line of the user's code that an allocation belongs to."""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from types import TracebackType

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(__file__) + os.sep
_current_node = torch._C._current_autograd_node
_next_number = torch._C._autograd._get_sequence_nr


class Attribution:
    """Module and line of the user's code that run, in the forward and the backward pass.

    In the backward pass they follow from the autograd node that runs: nodes are numbered in the
    order in which the forward pass makes them.

    Parameters
    ----------
    lines : bool
        Whether to look up the user's lines.

    Attributes
    ----------
    path : list of str
        Dotted paths of the modules that are being called, the innermost last.
    names : dict
        Names of weights, by the `id` of the tensor.
    """

    def __init__(self, lines: bool) -> None:
        self._lines = lines
        self.path = [""]
        self.names: dict[int, str] = {}
        # Autograd nodes from _numbers[i] on belong to _contexts[i], a (module, line).
        self._numbers: list[int] = []
        self._contexts: list[tuple[str, str]] = []

    def context(self) -> tuple[str, str]:
        """Module and user's line that run now."""
        node = _current_node()
        if node is None or len(self.path) > 1:  # the forward pass, or its recomputation
            context = (self.path[-1], user_line() if self._lines else "")
            if self._lines and torch.is_grad_enabled():
                self.remember(context)
            return context
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self.names.get(id(variable), ""), ""
        place = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._contexts[place] if place >= 0 else ("", "")

    def remember(self, context: tuple[str, str]) -> None:
        """Attribute the autograd nodes made from now on to a (module, line)."""
        if not self._contexts or self._contexts[-1] != context:
            number = _next_number()
            if self._numbers and self._numbers[-1] == number:
                self._contexts[-1] = context
            else:
                self._numbers.append(number)
                self._contexts.append(context)


def user_line() -> str:
    """Line, as "file:line", of the innermost frame outside torch and this package."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _OWN, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def line_of(trace: TracebackType | None) -> str:
    """Line, as "file:line", of the innermost frame of the user's code in a traceback."""
    found = "a line"
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((_TORCH, _OWN, "<")):
            found = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
