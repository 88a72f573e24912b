"""Check the steps of a pipeline against the registered methods, and collect all faults."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Set
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ..core.method_meta import MethodMeta
from ..core.method_registry import Registry
from ..core.parameters import annotations_of, check_parameters, nearest, type_name
from ..errors import (
    EstimatorError,
    ParameterError,
    PipelineError,
    UnknownMethodError,
    UnknownReferenceError,
)
from ..io import LoaderOptions, parse_loader
from ..io.scans.loader import TO_FILL_IN
from .steps import RawStep, Reference, Step, Sweep, sweep_fault

_DATABASE = "httomo_backends"
"""Package with the data for planning the methods of httomo's packages."""
_EXTRA = "pip install 'maxslices[httomo]', with Python 3.12 or newer"
_HOW_TO_INSTALL = {
    _DATABASE: _EXTRA,
    "httomo": _EXTRA,
    "httomolib": _EXTRA,
    "httomolibgpu": _EXTRA,
    "tomopy": "conda install -c conda-forge tomopy",
}
"""Top-level package of a ``module_path`` -> how to install it."""


def _missing_package(entry: RawStep, methods: Registry) -> str:
    """Missing package without which a step cannot be checked, or an empty string."""
    module, name = entry.content.get("module_path"), entry.content.get("method")
    package = module.partition(".")[0] if isinstance(module, str) else ""
    if package not in _HOW_TO_INSTALL or f"{module}.{name}" in methods or is_loader(entry.content):
        return ""
    # httomo itself is not needed, because maxslices has its loader and its statistics.
    needed = [_DATABASE] if package == "httomo" else [_DATABASE, package]
    return next((each for each in needed if find_spec(each) is None), "")


def _not_installed(package: str, steps: list[RawStep], methods: Registry) -> PipelineError:
    """One fault for all steps that need a missing package."""
    users = {str(step.content["module_path"]).partition(".")[0] for step in steps}
    names = [str(step.content.get("method")) for step in steps]
    which = f"{names[0]} is"
    if names[1:]:
        which = f"{names[0]} and {len(names) - 1} more step{'s' * (len(names) > 2)} are"
    how = _HOW_TO_INSTALL[package]
    text = f"{which} of {' and '.join(sorted(users))}, but {package} is not installed: {how}"
    own = sorted({name for name in names if name in methods})
    if own:
        text += f"; or leave out module_path to use another package ({', '.join(own)})"
    return steps[0].fault(text, "module_path")


HTTOMO_LOADER = "httomo.data.hdf.loaders"
LOADER_MODULES = (HTTOMO_LOADER, "maxslices.io")
"""A first step of one of these modules is the loader. With httomo's module, missing parameters have
the defaults of httomo."""
LOADER_METHOD = "standard_tomo"
_REFERENCE = re.compile(r"\s*\$\{\{\s*([\w-]+)\.side_outputs\.([\w-]+)\s*\}\}\s*")
_STEP_KEYS = ("method", "module_path", "parameters", "save_result", "id", "side_outputs")
_SAVES_BEFORE = ("save_intermediate_data", "httomo.methods")
"""A method of httomo and its module, which saves the data of the previous step. httomo supplies its
parameters, so they are ignored."""
_Offered = dict[str, set[str] | None]
"""id of a step -> names under its side_outputs, or None if the step is faulty."""


def check_steps(
    raw: list[RawStep], methods: Registry
) -> tuple[LoaderOptions, list[Step], list[PipelineError], list[PipelineError]]:
    """Check all steps.

    Returns
    -------
    (LoaderOptions, list of Step, list of PipelineError, list of PipelineError)
        The loader's options, the valid steps, all faults, and warnings.
    """
    faults: list[PipelineError] = []
    loader = LoaderOptions()
    if raw and is_loader(raw[0].content):
        loader = _loader_options(raw[0], faults)
        raw = raw[1:]
    steps: list[Step] = []
    offered: _Offered = {}
    last_without_save = None
    checked: list[tuple[Step, RawStep]] = []
    missing: dict[str, list[RawStep]] = {}
    for entry in raw:
        if (entry.content.get("method"), entry.content.get("module_path")) == _SAVES_BEFORE:
            _save_before(steps, entry, faults)
            continue
        step = None
        if package := _missing_package(entry, methods):
            missing.setdefault(package, []).append(entry)
        else:
            step = _StepCheck(entry, offered, faults).step(methods)
        if step is not None:
            checked.append((step, entry))
            if not step.meta.side_results:
                last_without_save = None if "save_result" in entry.content else len(steps)
            steps.append(step)
        step_id = entry.content.get("id")
        if isinstance(step_id, str):
            offered[step_id] = None if step is None else set(step.side_outputs.values())
    _check_one_sweep(steps, faults)
    if last_without_save is not None:
        # By default the last step that makes data is saved. Side results do not change the data.
        steps[last_without_save] = replace(steps[last_without_save], save_result=True)
    faults += [_not_installed(package, users, methods) for package, users in missing.items()]
    return loader, steps, faults, _follow_values(checked, faults)


def _follow_values(
    checked: list[tuple[Step, RawStep]], faults: list[PipelineError]
) -> list[PipelineError]:
    """Follow the quantity of the data: return warnings, and add faults of reconstructing twice."""
    warnings: list[PipelineError] = []
    values, made_by, volume_by = None, "", None
    for meta, entry in ((step.meta, entry) for step, entry in checked):
        if volume_by is not None and "angles" in meta.supplied:
            text = (
                f"{meta.name} takes projections, but {volume_by} has already reconstructed slices: "
                "leave out one of the two"
            )
            faults.append(entry.fault(text, "method"))
        if values is not None and meta.takes and values not in meta.takes:
            text = (
                f"{meta.name} takes {' or '.join(meta.takes)}, but {made_by} gives {values}: "
                "the result is probably wrong"
            )
            warnings.append(entry.fault(text, "method"))
        if meta.reconstructs:
            volume_by = meta.name
        if not (meta.side_results or meta.gives == "same" or meta.side_data == "alone"):
            values, made_by = meta.gives, meta.name
    return warnings


def _save_before(steps: list[Step], entry: RawStep, faults: list[PipelineError]) -> None:
    """Save the data of the step before."""
    making = [index for index, step in enumerate(steps) if not step.meta.side_results]
    if making:
        steps[making[-1]] = replace(steps[making[-1]], save_result=True)
    else:
        text = f"{_SAVES_BEFORE[0]} saves the data of the step before it, but it is the first step"
        faults.append(entry.fault(text, "method"))


def _check_one_sweep(steps: list[Step], faults: list[PipelineError]) -> None:
    """Check that at most one parameter is swept, as in httomo."""
    sweeps = [(f"{s.meta.name}.{name}", sweep) for s in steps for name, sweep in s.sweeps.items()]
    for name, sweep in sweeps[1:]:
        first, where = sweeps[0][0], sweeps[0][1].place.where
        text = (
            f"{name} is a second sweep after {first}{f' ({where})' if where else ''}: sweep one "
            "parameter in a run, and give the other one a single value"
        )
        faults.append(sweep.place.fault(text))


def is_loader(content: Mapping[str, Any]) -> bool:
    """True if a step is the loader."""
    return content.get("module_path") in LOADER_MODULES or content.get("method") == LOADER_METHOD


def _loader_options(entry: RawStep, faults: list[PipelineError]) -> LoaderOptions:
    for key in entry.content:
        if key not in ("method", "module_path", "parameters"):
            hint = "the loader has method, module_path and parameters"
            faults.append(entry.fault(f"unknown key {key!r}; {hint}", str(key)))
    name = entry.content.get("method", LOADER_METHOD)
    if name != LOADER_METHOD:
        text = f"unknown loader {name!r}; the only loader is {LOADER_METHOD}"
        faults.append(entry.fault(text, "method"))
    module = entry.content.get("module_path")
    if module not in (None, *LOADER_MODULES):
        text = f"{module!r} has no loader: leave out module_path, or use {LOADER_MODULES[0]}"
        faults.append(entry.fault(text, "module_path"))
    parameters = entry.content.get("parameters")
    parameters = {} if parameters is None else parameters
    options, invalid = parse_loader(parameters, as_httomo=module == HTTOMO_LOADER)
    faults += [entry.fault(each.text, ".".join(("parameters", *each.keys))) for each in invalid]
    return options


def _is_to_fill_in(value: Any) -> bool:
    """True if a value is a placeholder of a template, or contains one."""
    if isinstance(value, Mapping):
        return any(map(_is_to_fill_in, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_to_fill_in, value))
    return isinstance(value, str) and value == TO_FILL_IN


class _StepCheck:
    """Check of one step."""

    def __init__(self, entry: RawStep, offered: _Offered, faults: list[PipelineError]) -> None:
        self._entry = entry
        self._offered = offered
        self._faults = faults

    def step(self, methods: Registry) -> Step | None:
        """Checked step; None if it is faulty."""
        content, n_before = self._entry.content, len(self._faults)
        for key in content:
            if key not in _STEP_KEYS:
                hint = nearest(str(key), _STEP_KEYS) or f"; a step has {', '.join(_STEP_KEYS)}"
                self._fault(f"unknown key {key!r}{hint}", str(key))
        meta = self._method(methods)
        if meta is None:
            return None
        parameters = self._parameters(meta)
        side_outputs = self._side_outputs(meta)
        save_result = content.get("save_result", meta.saved_by_default)
        if not isinstance(save_result, bool):
            text = f"{meta.name}: save_result must be true or false, not {save_result!r}"
            self._fault(text, "save_result")
        step_id = content.get("id")
        if step_id is not None and not isinstance(step_id, str):
            self._fault(f"{meta.name}: id must be a name, not {step_id!r}", "id")
        elif step_id in self._offered:
            self._fault(f"{meta.name}: an earlier step already has the id {step_id!r}", "id")
        if len(self._faults) > n_before:
            return None
        step = Step(meta, parameters, save_result, step_id, side_outputs)
        try:
            with contextlib.suppress(UnknownReferenceError):
                meta.halo_slices(**step.known_parameters())
        except EstimatorError as error:
            self._fault(str(error), "parameters")
            return None
        return step

    def _fault(self, text: str, key: str = "") -> None:
        self._faults.append(self._entry.fault(text, key))

    def _method(self, methods: Registry) -> MethodMeta | None:
        content = self._entry.content
        if self._entry.meta is not None:
            return self._entry.meta
        if "method" not in content:
            self._fault("a step needs the key 'method'")
            return None
        name, module = content["method"], content.get("module_path")
        if not isinstance(name, str) or not name:
            self._fault(f"method must be the name of a method, not {name!r}", "method")
            return None
        if module is not None and not isinstance(module, str):
            text = f"{name}: module_path must be a dotted name, not {module!r}, or left out"
            self._fault(text, "module_path")
            return None
        if name == LOADER_METHOD:
            self._fault(f"{name} loads the scan: it can only be the first step")
            return None
        try:
            return methods.get(name, module)
        except UnknownMethodError as error:
            is_elsewhere = module is not None and any(each.name == name for each in methods)
            self._fault(str(error), "module_path" if is_elsewhere else "method")
            return None

    def _parameters(self, meta: MethodMeta) -> dict[str, Any]:
        written = self._entry.content.get("parameters")
        written = {} if written is None else written
        if not isinstance(written, Mapping):
            text = f"{meta.name}: parameters must be names with values, not {written!r}"
            self._fault(text, "parameters")
            return {}
        values = {
            self._present_name(meta, str(name), written): self._reference_or_value(str(name), value)
            for name, value in written.items()
        }
        plain: dict[str, Any] = {}
        n_before = len(self._faults)
        not_missing = set(meta.supplied)
        for name, value in values.items():
            key = f"parameters.{name}"
            if name in meta.supplied:
                text = f"{meta.name}: {name} is supplied during the run: leave it out"
                self._fault(text, key)
            elif isinstance(value, Sweep):
                not_missing.add(name)
            elif name not in meta.parameters and not meta.accepts_any:
                plain[name] = value  # an unknown name is a fault, whatever its value
            elif not isinstance(value, Reference):
                if _is_to_fill_in(value):
                    self._fill_in(meta, name)
                    not_missing.add(name)
                elif isinstance(value, str) and "${{" in value:
                    text = (
                        f"{meta.name}: {name} is not a reference: write "
                        f"${{{{id.side_outputs.name}}}}, not {value!r}"
                    )
                    self._fault(text, key)
                    not_missing.add(name)
                else:
                    plain[name] = value
            else:
                self._check_reference(meta, name, value)
                not_missing.add(name)
        for faulty, text in check_parameters(meta.function, plain, not_missing):
            key = f"parameters.{faulty}" if faulty else "method"
            text = f"{meta.name} {text}"
            self._faults.append(self._entry.fault(text, key, ParameterError))
        for name, value in values.items():
            if isinstance(value, Sweep) and (fault := sweep_fault(Step(meta, values), name)):
                key = f"parameters.{name}"
                self._faults.append(self._entry.fault(fault, key, ParameterError))
        if len(self._faults) == n_before:
            self._check_values(meta, plain, values.keys() - plain.keys())
        return values

    @staticmethod
    def _present_name(meta: MethodMeta, name: str, written: Mapping[Any, Any]) -> str:
        """Present name of a parameter that may have its name of an earlier release."""
        present = meta.former_names.get(name, name)
        return name if name in meta.parameters or present in written else present

    def _check_values(self, meta: MethodMeta, plain: Mapping[str, Any], unknown: Set[str]) -> None:
        """Check the values that the method can check without data."""
        refusal = meta.refusal(plain, unknown)
        if refusal is None:
            return
        named = re.findall(r"\w+", refusal)
        faulty = next((f"parameters.{name}" for name in named if name in plain), "method")
        text = f"{meta.name} refuses these values: {refusal}"
        self._faults.append(self._entry.fault(text, faulty, ParameterError))

    def _fill_in(self, meta: MethodMeta, name: str) -> None:
        """Add the fault of a placeholder that the user must replace."""
        parameter = meta.parameters.get(name)
        allowed = annotations_of(meta.function).get(name, Any)
        what = "" if allowed is Any else f" ({type_name(allowed)})"
        if parameter is not None and parameter.default is not parameter.empty:
            what += f", or leave it out to use {parameter.default!r}"
        self._faults.append(
            self._entry.fault(
                f"{meta.name}: {name} is {TO_FILL_IN}, a placeholder: write your value{what}",
                f"parameters.{name}",
                ParameterError,
            )
        )

    def _check_reference(self, meta: MethodMeta, parameter: str, reference: Reference) -> None:
        key = f"parameters.{parameter}"
        if reference.step_id not in self._offered:
            hint = nearest(reference.step_id, self._offered) or "; no earlier step has that id"
            text = f"{meta.name}: {parameter} refers to the step {reference.step_id!r}{hint}"
            self._fault(text, key)
            return
        names = self._offered[reference.step_id]
        if names is not None and reference.name not in names:
            has = ", ".join(sorted(names)) or "none"
            self._fault(
                f"{meta.name}: {parameter} refers to {reference.name!r} of the step "
                f"{reference.step_id!r}, whose side_outputs are: {has}",
                key,
            )

    def _side_outputs(self, meta: MethodMeta) -> dict[str, str]:
        names = self._entry.content.get("side_outputs")
        names = {} if names is None else names
        if not isinstance(names, Mapping) or not all(isinstance(v, str) for v in names.values()):
            text = f"{meta.name}: side_outputs must map side results to names, not {names!r}"
            self._fault(text, "side_outputs")
            return {}
        for result in names:
            if result not in meta.side_results:
                has = ", ".join(meta.side_results) or "none"
                text = f"{meta.name} has no side result {result!r}; it has: {has}"
                self._fault(text, f"side_outputs.{result}")
        return dict(names)

    def _reference_or_value(self, name: str, value: Any) -> Any:
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        place = self._entry.place(f"parameters.{name}")
        return Reference(match[1], match[2], place) if match else value
