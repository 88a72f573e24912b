"""Side results: values that methods return beside the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.author_code import defined_at
from ...errors import MethodError
from ...pipeline import Reference, Step


@dataclass(slots=True)
class SideResults:
    """Side results found so far, for references and for the report."""

    by_reference: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(step id, name under its side_outputs) -> value."""
    by_method: dict[str, Any] = field(default_factory=dict)
    """``method.name`` -> value; where a method ran before, ``method_2.name`` and so on."""
    _methods: list[str] = field(default_factory=list)

    def keep(self, step: Step, value: Any) -> None:
        """Keep what a step returned: one value, or a tuple of as many as it declares.

        Raises
        ------
        MethodError
            If it returned another number of values.
        """
        names, method = step.meta.side_results, step.meta.name
        values = (value,)
        if len(names) != 1 and isinstance(value, tuple | list):
            values = tuple(value)
        if len(values) != len(names):
            raise MethodError(
                f"{method} returned {len(values)} side results; it declares {len(names)}: "
                f"{', '.join(names)}{defined_at(step.meta.function)}"
            )
        self._methods.append(method)
        runs = self._methods.count(method)
        label = method if runs == 1 else f"{method}_{runs}"
        for name, item in zip(names, values, strict=True):
            self.by_method[f"{label}.{name}"] = item
            if step.id is not None and name in step.side_outputs:
                self.by_reference[step.id, step.side_outputs[name]] = item

    def angles_after(
        self, steps: Iterable[Step], angles: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """Angles of the result of steps, from those of the first one's data; None without any."""
        for step in steps:
            if angles is not None and step.meta.output_angles is not None:
                given = {name: self.resolve(value) for name, value in step.parameters.items()}
                angles = step.meta.angles_after(angles, given)
        return angles

    def resolve(self, value: Any) -> Any:
        """Value of a parameter, looked up if it is a reference."""
        if isinstance(value, Reference):
            return self.by_reference[value.step_id, value.name]
        return value
