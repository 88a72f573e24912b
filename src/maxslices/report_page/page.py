"""Pages and fragments made of templates; every value in them is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..core.units import format_bytes, format_duration
from .drawings import (
    HISTOGRAM_BINS,
    HISTOGRAM_HEIGHT,
    SlicePicture,
)
from .sections import (
    STAGES,
    breakable,
    plain_name,
    printable,
    section_bars,
    section_views,
    short,
    side_values,
)


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
    return {"plan": plan, "report": None, "sections": sections, "memory": section_bars(sections)}


def _of_run(report: Mapping[str, Any]) -> dict[str, Any]:
    sections = section_views(report["plan"], report)
    return {
        "plan": report["plan"],
        "report": report,
        "sections": sections,
        "memory": section_bars(sections),
        "side_values": side_values(report),
        "warnings": [
            f"Section {each.number}: {text}"
            for each in sections
            if each.run is not None
            for text in (*each.run["warnings"], *each.run["findings"])
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
