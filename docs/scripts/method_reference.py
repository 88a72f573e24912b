"""Reference of the methods of maxslices-methods, as Markdown, from what they declare.

`docs/conf.py` puts it into ``docs/reference/methods.md`` when the docs are built, so that no page
has to be kept up to date by hand. To read it without building:

    python docs/scripts/method_reference.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpydoc.docscrape import NumpyDocString

from maxslices import registry
from maxslices.core.method_meta import MethodMeta
from maxslices.core.parameters import annotations_of, type_name
from maxslices.core.units import format_bytes
from maxslices.estimate.model_request import ModelRequest
from maxslices.estimate.model_resolver import declared_model

PACKAGE = "maxslices_methods"
ROOT = Path(__file__).parents[2]
DIMS = (1801, 2160, 2560)
"""Scan for which memory is given: the size used for the pack's measured peaks."""
FEW, MANY = 64, 128
"""Slices at which the estimators are asked: many enough that chunks of 32 slices are full."""
REQUIRED: dict[str, dict[str, Any]] = {
    "denoise_unet": {"weights": str(ROOT / "tests/methods/data/unet.safetensors")},
    "nonlocal_means": {"strength": 0.3},
    "data_resampler": {"newshape": [1080, 1280]},
    "total_variation_rof": {"iterations": 50, "regularisation_parameter": 0.1},
    "total_variation_pd": {"iterations": 50, "regularisation_parameter": 0.1},
}
"""Values of the parameters without a default, where an estimator reads them."""
PATTERNS = {
    "projection": "projections",
    "sinogram": "sinograms",
    "all": "projections or sinograms",
}
DTYPES = ("uint8", "uint16", "float32", "float64")
"""Input dtypes for which the dtype of the result is given."""


def markdown() -> str:
    """Return the sections of all methods of the pack, in alphabetical order."""
    registry.load_entry_points()
    metas = sorted(
        (meta for meta in registry if meta.module.startswith(f"{PACKAGE}.")),
        key=lambda meta: meta.name,
    )
    return "\n".join(section(meta) for meta in metas)


def section(meta: MethodMeta) -> str:
    """Return the section of one method."""
    text = NumpyDocString(inspect.getdoc(meta.function) or "")
    lines = [f"## {meta.name}", "", prose([*text["Summary"], "", *text["Extended Summary"]]), ""]
    lines += [f"`{meta.full_name}`", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts(meta)]
    lines += ["", *parameters(meta, text), ""]
    if text["Notes"]:
        lines += [prose(text["Notes"]), ""]
    return "\n".join(lines)


def facts(meta: MethodMeta) -> list[tuple[str, str]]:
    """Return what the method declares, as rows of a table."""
    asked = REQUIRED.get(meta.name, {})
    rows = [("works on", PATTERNS[meta.pattern]), ("halo", halo(meta, asked))]
    if meta.takes:
        rows += [("takes", " or ".join(meta.takes))]
    if meta.gives not in (None, "same"):
        rows += [("result", meta.gives)]
    if meta.side_results:
        rows += [("gives", f"{', '.join(meta.side_results)}; the data go on unchanged")]
    else:
        rows += [("dims of a slice", dims(meta, asked)), ("dtype", dtypes(meta, asked))]
    if meta.supplied:
        rows += [("filled in", ", ".join(f"`{name}`" for name in meta.supplied))]
    return [*rows, ("memory on a GPU", memory(meta, asked))]


def halo(meta: MethodMeta, asked: dict[str, Any]) -> str:
    """Return the slices needed around a block, in words."""
    before, after = meta.halo_slices(**asked)
    if not callable(meta.halo):
        return "none" if before == after == 0 else f"{before} slices before, {after} after"
    return f"by its parameters; {before} slices before and {after} after {given(asked)}"


def dims(meta: MethodMeta, asked: dict[str, Any]) -> str:
    """Return what becomes of a slice's dims, in words."""
    slice_dim = meta.slice_dims()[0]
    other = other_dims(slice_dim)
    result = meta.output_other_dims(slice_dim, other, **asked)
    if meta.output_dims is None:
        return "as the input's"
    return f"by its parameters; {by(other)} to {by(result)} {given(asked)}"


def dtypes(meta: MethodMeta, asked: dict[str, Any]) -> str:
    """Return the dtype of the result for each dtype of the input, in words."""
    slice_dim = meta.slice_dims()[0]
    found = {
        dtype: str(meta.output_dtype(slice_dim, other_dims(slice_dim), dtype, **asked))
        for dtype in DTYPES
    }
    if all(into == dtype for dtype, into in found.items()):
        return "as the input's"
    if len(set(found.values())) == 1:
        return f"{found['float32']}, from any"
    return ", ".join(f"{dtype} to {into}" for dtype, into in found.items())


def memory(meta: MethodMeta, asked: dict[str, Any]) -> str:
    """Return the peak for slices of a large scan, as its estimator gives it, in words."""
    slice_dim = meta.slice_dims()[0]
    other = other_dims(slice_dim)
    if meta.estimator is None:
        return "none is declared; it is measured when it is planned"
    request = ModelRequest(meta, slice_dim, other, np.dtype("float32"), asked, DIMS[slice_dim])
    if meta.sample_slices is not None:
        peak = declared_model(request, "cuda").bytes(1)
        return f"{format_bytes(peak)} for the slice that it looks at ({by(other)} float32)"
    model = declared_model(request, "cuda")
    per_slice = (model.bytes(MANY) - model.bytes(FEW)) / (MANY - FEW)
    fixed = model.bytes(MANY) - MANY * per_slice
    times = per_slice / (other[0] * other[1] * 4)
    text = f"{given(asked)}: {times:.2f} times the input, {format_bytes(round(per_slice))} for a "
    text += f"slice of {by(other)} float32"
    if fixed > 0.01 * model.bytes(MANY):
        text += f"; and {format_bytes(round(fixed))} once"
    return text


def parameters(meta: MethodMeta, text: NumpyDocString) -> list[str]:
    """Return the user's parameters as a definition list."""
    hints = annotations_of(meta.function)
    described = {each.name: " ".join(each.desc) for each in text["Parameters"]}
    for names in [name for name in described if "," in name]:
        described |= dict.fromkeys(map(str.strip, names.split(",")), described[names])
    lines = []
    for name, parameter in meta.parameters.items():
        if name in meta.supplied:
            continue
        kind = type_name(hints[name]) if name in hints else "any value"
        required = parameter.default is parameter.empty
        default = "required" if required else f"default `{parameter.default!r}`"
        lines += [f"`{name}` ({kind}; {default})", f": {prose([described.get(name, '')])}", ""]
    return lines or ["It has no parameters of its own."]


def other_dims(slice_dim: int) -> tuple[int, int]:
    """Return the two dims of a slice of the large scan."""
    first, second = (n for dim, n in enumerate(DIMS) if dim != slice_dim)
    return first, second


def given(asked: dict[str, Any]) -> str:
    """Return for which parameters a figure holds, in words."""
    shown = ", ".join(f"{name} {value}" for name, value in asked.items() if name != "weights")
    return f"with {shown}" if shown else "with the defaults"


def by(shape: tuple[int, ...]) -> str:
    """Return dims as 2160x2560."""
    return "x".join(map(str, shape))


def prose(lines: list[str]) -> str:
    """Return reStructuredText of a docstring as Markdown, in which names are code."""
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", "\n".join(lines))
    return text.replace("``", "`").strip()


if __name__ == "__main__":
    print(markdown())
