"""Write a pipeline as a pipeline file, with all defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from ..core.units import readable
from ..errors import PipelineError
from .pipeline import Pipeline
from .steps import Reference, Step, Sweep
from .yaml_file import read_pipeline_text
from .yaml_values import SWEEP_LIST, is_ambiguous

_LOADER = {
    "data_path": "auto",
    "image_key_path": "auto",
    "rotation_angles": "auto",
    "flats": "auto",
    "darks": "auto",
}
"""Default parameters of the loader."""


class _Dumper(yaml.SafeDumper):
    """Writer of pipeline files. It writes no aliases, which would be hard to edit."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _sweep(dumper: yaml.SafeDumper, sweep: Sweep) -> yaml.Node:
    return dumper.represent_sequence(SWEEP_LIST, [_plain(v) for v in sweep.values])


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "'" if is_ambiguous(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(Sweep, _sweep)
_Dumper.add_representer(str, _text)


def pipeline_text(pipeline: Pipeline, header: Sequence[str] = ()) -> str:
    """Write a pipeline as the text of an equivalent file.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    header : sequence of str
        Comments for the beginning, one line each.

    Returns
    -------
    str
        YAML, without defaults that a file cannot express, such as functions.

    Raises
    ------
    PipelineError
        If reading the text does not give the same steps.
    """
    as_httomo = pipeline.loader.dummies  # httomo has other defaults for its loader
    loader = {
        "method": "standard_tomo",
        "module_path": "httomo.data.hdf.loaders" if as_httomo else "maxslices.io",
        "parameters": {**({} if as_httomo else _LOADER), **_plain(pipeline.loader_given)},
    }
    steps = [loader, *(_step(step) for step in pipeline.steps)]
    comments = (readable(line).replace("\n", " ") for line in header)
    body = _dumped(steps)
    text = "".join(f"# {line}\n" for line in comments) + body
    raw = read_pipeline_text(text, pipeline.name)
    if _dumped([dict(step.content) for step in raw]) != body:
        raise PipelineError("its steps change when they are written and read again", pipeline.name)
    return text


def _dumped(steps: list[dict[str, Any]]) -> str:
    text: str = yaml.dump(
        steps, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=100
    )
    return text


def _step(step: Step) -> dict[str, Any]:
    meta = step.meta
    defaults = {
        name: _plain(value)
        for name, value in meta.merged().items()
        if name not in meta.supplied and _can_be_written(value)
    }
    written = {
        name: value if isinstance(value, Sweep) else _plain(value)
        for name, value in step.parameters.items()
    }
    entry: dict[str, Any] = {
        "method": meta.name,
        "module_path": meta.module,
        "parameters": {**defaults, **written},
    }
    if not meta.side_results:
        entry["save_result"] = step.save_result
    if step.id is not None:
        entry["id"] = step.id
    if step.side_outputs:
        entry["side_outputs"] = dict(step.side_outputs)
    return entry


def _can_be_written(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_can_be_written, value))
    if isinstance(value, Mapping):
        return all(map(_can_be_written, value.values()))
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _plain(value: Any) -> Any:
    if isinstance(value, Reference):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_plain(item) for item in value]
    return value if _can_be_written(value) else str(value)
