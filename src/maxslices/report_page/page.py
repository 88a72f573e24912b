"""HTML pages of plans and runs, and fragments of them for notebooks, made from templates.

Every value in a template is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..core.arrays import SLICE_NAMES
from ..core.units import format_bytes, format_duration, readable
from .drawings import HISTOGRAM_BINS, HISTOGRAM_HEIGHT, SlicePicture

LONGEST = 160
"""Most characters of a value: two lines on a page, four on a phone."""
FIRST = 4
"""Values of a list that are shown."""
_PART = re.compile(r"(?<=[._/:])(?=\w)")
"""Where the name of a method, or a path, may be broken."""
_REFERENCE = re.compile(r"\$\{\{\s*(\w+)\.side_outputs\.(\w+)\s*\}\}")
"""Reference to a side result: step id and name."""


def short(value: Any) -> str:
    """Write a value of JSON as a short text.

    Examples
    --------
    >>> short(128.24461)
    '128.245'
    >>> short([0.5, 1, 1.5, 2, 2.5, 3])
    '6 values: 0.5, 1, 1.5, 2, ...'
    >>> short({"size": 7, "mode": None})
    'size: 7, mode: none'
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {short(item)}" for key, item in value.items())
    elif isinstance(value, list | tuple):
        text = ", ".join(short(item) for item in value[:FIRST])
        if len(value) > FIRST:
            text = f"{len(value)} values: {text}, ..."
        elif any(isinstance(item, list | tuple) for item in value):
            text = f"[{text}]"
    else:
        text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def breakable(text: str) -> Markup:
    """Allow line breaks after the parts of a name.

    Examples
    --------
    >>> breakable("find_center.cor")
    Markup('find_<wbr>center.<wbr>cor')
    """
    return Markup("<wbr>").join(_PART.split(text))


def printable(value: Any) -> Any:
    """Escape the control characters of a text. Other values are returned unchanged."""
    return type(value)(readable(value)) if isinstance(value, str) else value


PLACES = {
    "scan": "the scan",
    "device": "the device",
    "memory": "host memory",
    "scratch file": "a scratch file",
    "result": "the result",
    "nothing": "nothing is kept",
}
BOUNDS = {
    "read": ("reading", "the disk or its decompression set the pace"),
    "link in": ("the link in", "copies to the device set the pace"),
    "compute": ("computing", "the methods set the pace"),
    "link out": ("the link out", "copies from the device set the pace"),
    "write": ("writing", "the disk of the results set the pace"),
    "overhead": ("overhead", "no stage was busy for more than half of the time"),
    "pipeline stalls": ("pipeline stalls", "stages waited for each other, as with few blocks"),
}
"""What bounded a section: its name, and an explanation."""
STAGES = {"in": "link in", "out": "link out"}
"""Longer names of stages whose names in a report are unclear."""


def section_views(
    plan: Mapping[str, Any], report: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Describe the sections of a plan, and how they ran if there is a report."""
    views: list[dict[str, Any]] = []
    kept_bytes = 0
    for number, planned in enumerate(plan["sections"], start=1):
        run = None if report is None else report["sections"][number - 1]
        sizes = [(use["first_slice"], use["block"]) for use in run["blocks"]] if run else []
        name = SLICE_NAMES[planned["slice_dim"]]
        bound = run and run["bound_by"]
        in_memory = f" ({format_bytes(kept_bytes)} of it in memory)" if kept_bytes else ""
        kept_bytes = planned["kept_bytes"]
        views.append(
            {
                "number": number,
                "plan": planned,
                "run": run,
                "slices": _counted(planned["n_slices"], name),
                "origin": PLACES.get(planned["origin"], planned["origin"]) + in_memory,
                "destination": PLACES.get(planned["destination"], planned["destination"]),
                "blocks": _blocks(planned, name, sizes or [(0, planned["block"])]),
                "bound": bound and BOUNDS.get(bound, (bound, "")),
            }
        )
    return views


def _blocks(planned: Mapping[str, Any], name: str, sizes: Sequence[tuple[int, int]]) -> str:
    if not planned["on_blocks"]:
        return f"reads a few {name}s only, for its side results"
    ends = [first for first, _ in sizes[1:]] + [planned["n_slices"]]
    n_blocks = sum(
        -(-(end - first) // block) for (first, block), end in zip(sizes, ends, strict=True)
    )
    text = f"{_counted(n_blocks, 'block')} of {sizes[0][1]}"
    for first, block in sizes[1:]:
        text += f", of {block} from {name} {first}"
    before, after = planned["halo"]
    return f"{text}, halo {before}+{after}" if before or after else text


def plain_name(method: str) -> str:
    """Return the name of a method without its module."""
    return method.rsplit(".", 1)[-1]


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def side_values(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the side results of a report in order.

    A report names them by method: ``find_center_vo.cor``, and ``find_center_vo_2.cor`` if the
    method ran again. A pipeline may name them by a step's id and its ``side_outputs``.
    """
    own_names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for step in report["plan"]["made_for"]["pipeline"][1:]:
        method = plain_name(step["method"])
        counts[method] = counts.get(method, 0) + 1
        label = method if counts[method] == 1 else f"{method}_{counts[method]}"
        for name, own in (step.get("side_outputs") or {}).items():
            own_names[f"{label}.{name}"] = f"{step['id']}.{own}" if step.get("id") else own
    return [
        {"name": own_names.get(name, name), "method": name, "value": value}
        for name, value in report["side_results"].items()
    ]


def _summary(sections: Sequence[Mapping[str, Any]]) -> str:
    """Say in a sentence what bounded the run: its longest section that did not run earlier."""
    ran = [each for each in sections if each["run"] and not each["run"]["is_earlier"]]
    if not ran:
        return ""
    longest = max(ran, key=lambda each: each["run"]["duration_s"])
    if longest["bound"] is None:
        return ""
    name, meaning = longest["bound"]
    if len(ran) == 1:
        return f"Bound by {name}: {meaning}."
    took = format_duration(longest["run"]["duration_s"])
    methods = ", ".join(plain_name(step["method"]) for step in longest["plan"]["steps"])
    return f"Section {longest['number']} ({methods}) took {took}, bound by {name}: {meaning}."


def resolved(value: Any, values: Sequence[Mapping[str, Any]]) -> Any:
    """Replace a reference to a side result by its value, if the run found it.

    Examples
    --------
    >>> found = [{"name": "centering.axis", "value": 699.5}]
    >>> resolved("${{centering.side_outputs.axis}}", found)
    699.5
    """
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    by_name = {each["name"]: each["value"] for each in values}
    return by_name.get(f"{match[1]}.{match[2]}", value)


def plan_page(plan: Mapping[str, Any]) -> str:
    """Make the page of a plan.

    Parameters
    ----------
    plan : mapping
        Result of `Plan.to_dict`.

    Returns
    -------
    str
        A complete HTML file, which loads nothing and runs no scripts.
    """
    return _rendered("plan_page.html", **_of_plan(plan))


def run_page(
    report: Mapping[str, Any],
    *,
    about: Mapping[str, str] | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    pictures: Sequence[SlicePicture] = (),
    warned: Sequence[str] = (),
) -> str:
    """Make the page of a run.

    Parameters
    ----------
    report : mapping
        Result of `Report.to_dict`.
    about : mapping of str to str, optional
        Scan, command, time and machine: heading -> text.
    defaults : mapping of str to mapping, optional
        Full name of a method -> its parameters with their default values.
    pictures : sequence of SlicePicture, optional
        Slices of the results, the final one first.
    warned : sequence of str, optional
        Warnings that are not in the report, such as about missing frames.

    Returns
    -------
    str
        A complete HTML file, which loads nothing and runs no scripts.
    """
    return _rendered(
        "run_page.html",
        about=about or {},
        pictures=pictures,
        warned=warned,
        **_of_run(report, defaults or {}),
    )


def plan_fragment(plan: Mapping[str, Any]) -> str:
    """Make the HTML of a plan for a notebook's cell."""
    return _rendered("plan_fragment.html", **_of_plan(plan))


def run_fragment(report: Mapping[str, Any], pictures: Sequence[SlicePicture] = ()) -> str:
    """Make the HTML of a report for a notebook's cell."""
    return _rendered("run_fragment.html", pictures=pictures, **_of_run(report, {}))


def _of_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    sections = section_views(plan)
    return {
        "plan": plan,
        "report": None,
        "sections": sections,
        "side_values": [],
        "defaults": {},
    }


def _of_run(report: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    sections = section_views(report["plan"], report)
    return {
        "plan": report["plan"],
        "report": report,
        "sections": sections,
        "summary": _summary(sections),
        "side_values": side_values(report),
        "defaults": defaults,
        "warnings": [
            f"Section {each['number']}: {text}"
            for each in sections
            for text in (*each["run"]["warnings"], *each["run"]["findings"])
        ],
    }


def _array(spec: Mapping[str, Any]) -> str:
    """Format the shape and dtype of an array as `ArraySpec` does."""
    return f"{'x'.join(map(str, spec['shape']))} {spec['dtype']}"


def _rendered(template: str, **values: Any) -> str:
    return _templates().get_template(template).render(values)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("maxslices.report_page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "array": _array,
        "bytes": format_bytes,
        "breakable": breakable,
        "plain_name": plain_name,
        "resolved": resolved,
        "duration": format_duration,
        "short": short,
    }
    environment.globals |= {
        "histogram_box": f"0 0 {HISTOGRAM_BINS} {HISTOGRAM_HEIGHT}",
        "stage_names": STAGES,
    }
    return environment
