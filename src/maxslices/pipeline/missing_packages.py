"""Steps of httomo's packages where these are not installed: one fault for all of a package."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

from ..core.method_registry import Registry
from ..errors import PipelineError
from .steps import RawStep

_DATABASE = "httomo_backends"
"""Package that says what the methods of the others need to be planned."""
_EXTRA = "pip install 'maxslices[httomo]', with Python 3.12 or newer"
_HOW_TO_INSTALL = {
    "httomo": _EXTRA,
    "httomolib": _EXTRA,
    "httomolibgpu": _EXTRA,
    "tomopy": "conda install -c conda-forge tomopy",
}
"""Top-level package of a ``module_path`` -> how it is installed."""


@dataclass(slots=True)
class MissingPackages:
    """Steps that cannot be checked, because the package of their method is not installed."""

    _steps: dict[str, list[RawStep]] = field(default_factory=dict)
    """Missing package -> its steps."""

    def has(self, entry: RawStep, methods: Registry) -> bool:
        """Note a step if its package is missing; true if so."""
        module, name = entry.content.get("module_path"), entry.content.get("method")
        package = module.partition(".")[0] if isinstance(module, str) else ""
        if package not in _HOW_TO_INSTALL or f"{module}.{name}" in methods:
            return False
        # httomo itself is not needed: its loader and its statistics are here.
        needed = [_DATABASE] if package == "httomo" else [_DATABASE, package]
        missing = next((each for each in needed if find_spec(each) is None), None)
        if missing is None:
            return False
        self._steps.setdefault(missing, []).append(entry)
        return True

    def faults(self, methods: Registry) -> list[PipelineError]:
        """One fault for each missing package."""
        return [_fault(package, steps, methods) for package, steps in self._steps.items()]


def _fault(package: str, steps: list[RawStep], methods: Registry) -> PipelineError:
    of = {str(step.content["module_path"]).partition(".")[0] for step in steps}
    names = [str(step.content.get("method")) for step in steps]
    which = f"{names[0]} is"
    if names[1:]:
        which = f"{names[0]} and {len(names) - 1} more step{'s' * (len(names) > 2)} are"
    how = _EXTRA if package == _DATABASE else _HOW_TO_INSTALL[package]
    text = f"{which} of {' and '.join(sorted(of))}, for which {package} is not installed: {how}"
    own = sorted({name for name in names if name in methods})
    if own:
        text += f"; or leave module_path out, for the method of another package ({', '.join(own)})"
    return steps[0].fault(text, "module_path")
