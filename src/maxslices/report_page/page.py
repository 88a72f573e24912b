"""Pages and fragments made of templates, and what they show of a plan and its run.

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
"""Characters of a value; two lines on a page, four on a phone."""
FIRST = 4
"""Values of a list that are written out."""
_PART = re.compile(r"(?<=[._/:])(?=\w)")
"""Where a name of a method, or a path, may be broken."""


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
    """Let a name be broken behind its parts, and not anywhere, where the page is narrow.

    Examples
    --------
    >>> breakable("find_center.cor")
    Markup('find_<wbr>center.<wbr>cor')
    """
    return Markup("<wbr>").join(_PART.split(text))


def printable(value: Any) -> Any:
    """Escape the control characters of a text; other values are returned unchanged."""
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
    "overhead": ("overhead", "no stage was at work for more than half of the time"),
    "pipeline stalls": ("pipeline stalls", "stages waited for each other, as with few blocks"),
}
"""What bounded a section, in words, and what that means."""
STAGES = {"in": "link in", "out": "link out"}
"""Stages whose names in a report are too short to be understood alone."""


def section_views(
    plan: Mapping[str, Any], report: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Sections of a plan, with those of the report of its run beside them, in words."""
    views, kept_bytes = [], 0
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
        return f"a few {name}s alone, for its side results"
    ends = [first for first, _ in sizes[1:]] + [planned["n_slices"]]
    n_blocks = sum(
        -(-(end - first) // block) for (first, block), end in zip(sizes, ends, strict=True)
    )
    text = f"{_counted(n_blocks, 'block')} of {sizes[0][1]}"
    for first, block in sizes[1:]:
        text += f", {block} from {name} {first} on"
    before, after = planned["halo"]
    return f"{text}, halo {before}+{after}" if before or after else text


def plain_name(method: str) -> str:
    """Name of a method without its module."""
    return method.rsplit(".", 1)[-1]


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def side_values(report: Mapping[str, Any]) -> list[dict[str, Any]]:
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
        {"name": given.get(name, name), "method": name, "value": value}
        for name, value in report["side_results"].items()
    ]


def plan_page(plan: Mapping[str, Any]) -> str:
    """Page of a plan.

    Parameters
    ----------
    plan : mapping
        What `Plan.to_dict` gives.

    Returns
    -------
    str
        A whole HTML file, which loads nothing and runs no script.
    """
    return _rendered("plan_page.html", **_of_plan(plan))


def run_page(
    report: Mapping[str, Any],
    *,
    written: str,
    pictures: Sequence[SlicePicture] = (),
    warned: Sequence[str] = (),
) -> str:
    """Page of a run.

    Parameters
    ----------
    report : mapping
        What `Report.to_dict` gives.
    written : str
        Date and time, as they are shown.
    pictures : sequence of SlicePicture, optional
        Slices of the results, the final one first.
    warned : sequence of str, optional
        Texts of warnings that the report does not hold, such as of frames that are missing.

    Returns
    -------
    str
        A whole HTML file, which loads nothing and runs no script.
    """
    return _rendered(
        "run_page.html",
        written=written,
        pictures=pictures,
        warned=warned,
        **_of_run(report),
    )


def plan_fragment(plan: Mapping[str, Any]) -> str:
    """A plan for a cell of a notebook."""
    return _rendered("plan_fragment.html", **_of_plan(plan))


def run_fragment(report: Mapping[str, Any], pictures: Sequence[SlicePicture] = ()) -> str:
    """A report for a cell of a notebook."""
    return _rendered("run_fragment.html", pictures=pictures, **_of_run(report))


def _of_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    sections = section_views(plan)
    return {"plan": plan, "report": None, "sections": sections}


def _of_run(report: Mapping[str, Any]) -> dict[str, Any]:
    sections = section_views(report["plan"], report)
    return {
        "plan": report["plan"],
        "report": report,
        "sections": sections,
        "side_values": side_values(report),
        "warnings": [
            f"Section {each['number']}: {text}"
            for each in sections
            for text in (*each["run"]["warnings"], *each["run"]["findings"])
        ],
    }


def _array(spec: Mapping[str, Any]) -> str:
    """Shape and dtype of an array, as `ArraySpec` writes them."""
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
        "duration": format_duration,
        "short": short,
    }
    environment.globals |= {
        "histogram_box": f"0 0 {HISTOGRAM_BINS} {HISTOGRAM_HEIGHT}",
        "stage_names": STAGES,
    }
    return environment
