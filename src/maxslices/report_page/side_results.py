"""Side results of a run, by the names that the user gave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .section_view import plain_name


@dataclass(frozen=True, slots=True)
class SideValue:
    """One side result."""

    name: str
    """The user's name for it, with the step's id, else the method's."""
    method: str
    """Method and its own name for it."""
    value: Any
    """The value, as JSON has it."""


def side_values(report: Mapping[str, Any]) -> list[SideValue]:
    """Side results of a report, in order.

    A report names them by method (``find_center_vo.cor``, where it ran again ``find_center_vo_2``);
    a pipeline may name them by a step's id and its ``side_outputs``.
    """
    given: dict[str, str] = {}
    counts: dict[str, int] = {}
    for step in report["plan"]["made_for"]["pipeline"][1:]:
        method = plain_name(step["method"])
        counts[method] = counts.get(method, 0) + 1
        label = method if counts[method] == 1 else f"{method}_{counts[method]}"
        for name, own in (step.get("side_outputs") or {}).items():
            given[f"{label}.{name}"] = f"{step['id']}.{own}" if step.get("id") else own
    return [
        SideValue(given.get(name, name), name, value)
        for name, value in report["side_results"].items()
    ]
