"""A plan as plain data: methods, places, blocks and memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from ..core.units import format_bytes
from ..errors import UsageError
from .section_plan import SectionPlan, check_sections, headed, section_lines, wrapped


@dataclass(frozen=True, slots=True)
class MadeFor:
    """Scan, pipeline, device and versions of a plan. A run on anything else is refused."""

    scan: dict[str, Any] = field(default_factory=dict)
    """Shape and dtype of the projections, and of the flats and darks that a method takes. The key
    "angles" if the scan has angles and a method takes them."""
    scan_in_memory: bool = False
    """Whether the scan is an array that the device can use, or copy blocks from."""
    pipeline: tuple[dict[str, Any], ...] = ()
    """Content of the pipeline: its loader, then each step."""
    device: str = ""
    """"cpu" or "cuda"."""
    n_cores: int | None = None
    """Number of cores that a CPU run may use, because methods take memory for each thread. None on
    a GPU."""
    versions: dict[str, Any] = field(default_factory=dict)
    """Versions of maxslices, of the packages of methods, and of their requirements."""

    def differences(self, other: MadeFor) -> list[str]:
        """Differences between a run and the plan, one phrase each."""
        differences = []
        if self.device != other.device:
            differences.append(f"the device is {other.device}, but the plan is for {self.device}")
        if self.n_cores is not None and other.n_cores is not None and other.n_cores > self.n_cores:
            differences.append(
                f"{other.n_cores} cores may be used here, but the plan is for {self.n_cores}, and "
                f"each takes memory (taskset -c {_first_cores(self.n_cores)} limits them)"
            )
        differences += _differing("of the scan", self.scan, other.scan)
        if self.scan_in_memory and not other.scan_in_memory:  # reading needs further buffers
            differences.append("the scan must be read, but the plan is for one in memory")
        pipelines = self.pipeline, other.pipeline
        methods = zip_longest(*([part.get("method") for part in each] for each in pipelines))
        # After a removed or new step, all steps have other numbers.
        moved = next(((i, *pair) for i, pair in enumerate(methods) if pair[0] != pair[1]), None)
        same = None if moved is None else moved[0]
        differences += _differing("of the pipeline", *(_by_key(each[:same]) for each in pipelines))
        if moved is not None:
            number, planned, here = moved
            name = f"step {number}"
            differences += _differing("of the pipeline", {name: planned}, {name: here})
        # Packages such as CuPy that were missing when the plan was made are not compared.
        planned = {name: v for name, v in self.versions.items() if v is not None}
        here = {name: other.versions.get(name) for name in planned}
        return differences + _differing("installed", planned, here)


def _first_cores(n: int) -> str:
    return "0" if n <= 1 else f"0-{n - 1}"


def _by_key(pipeline: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The values of a pipeline's content under names such as "step 2 (fbp): id"."""
    parts: dict[str, Any] = {}
    for number, part in enumerate(pipeline):
        name = "loader" if number == 0 else f"step {number} ({part.get('method', '?')})"
        parts |= {f"{name}: {key}": value for key, value in part.items()}
    return parts


def _differing(what: str, planned: dict[str, Any], here: dict[str, Any]) -> list[str]:
    names = [name for name in {**planned, **here} if planned.get(name) != here.get(name)]
    return [
        f"{name} {what} is {_shown(here.get(name))}; the plan is for {_shown(planned.get(name))}"
        for name in names
    ]


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of a JSON object without repeated keys."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the plan repeats the key {twice!r} in one object")
    return values


@dataclass(frozen=True, slots=True)
class Plan:
    """Sections and blocks of a run of a pipeline on a scan within budgets."""

    scan: str
    """Name, shape and dtype of the scan, for users."""
    device: str
    """"cpu", "cuda" (any card) or "cuda:N"."""
    budget_bytes: int
    """Bytes that may be used on the device."""
    reserved_bytes: int
    """Part of these for the CUDA context and its libraries."""
    host_budget_bytes: int
    """Bytes of host memory that may be used."""
    sections: tuple[SectionPlan, ...]
    """The sections, in order."""
    scratch_bytes: int
    """Most disk space of scratch files at one time."""
    result_bytes: int
    """Disk space of the results."""
    notes: tuple[str, ...] = ()
    """Assumptions, and origins of estimates that are not declared."""
    made_for: MadeFor = field(default_factory=MadeFor)
    """Scan, pipeline, kind of device and versions of the plan."""

    @property
    def estimated_bytes(self) -> int:
        """Highest peak on the device over all sections."""
        return max(section.estimated_bytes for section in self.sections)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain types, with derived numbers."""
        from ..system.plain_records import to_plain  # msgspec is imported where it is used

        entries: dict[str, Any] = to_plain(self)
        entries["estimated_bytes"] = self.estimated_bytes
        for entry, section in zip(entries["sections"], self.sections, strict=True):
            entry["n_blocks"] = section.n_blocks
            entry["limited_by"] = section.limited_by
        return entries

    def to_json(self) -> str:
        """The plan as JSON text, which `from_json` reads."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Make the plan that `to_json` wrote.

        Raises
        ------
        UsageError
            If the text is not JSON, not a plan, or its numbers are inconsistent, naming the field.
        """
        from ..system.plain_records import from_plain

        try:
            value = json.loads(text, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the plan is not JSON: {error}") from None
        plan = from_plain(cls, value, "plan")
        check_sections(plan.sections, plan.budget_bytes - plan.reserved_bytes)
        return plan

    def __repr__(self) -> str:
        methods = ", ".join(step.name for section in self.sections for step in section.steps)
        peak, budget = map(format_bytes, (self.estimated_bytes, self.budget_bytes))
        return f"<Plan: {methods} on {self.scan}, {peak} of {budget} on {self.device}>"

    def _repr_html_(self) -> str:
        """The plan for a notebook."""
        from ..report_page.page import plan_fragment

        return plan_fragment(self.to_dict())

    def __str__(self) -> str:
        lines = headed(
            self.scan, self.device, self.budget_bytes, self.reserved_bytes, self.host_budget_bytes
        )
        for number, section in enumerate(self.sections, start=1):
            lines += ["", *section_lines(number, section, self.device)]
        total = f"Results on disk {format_bytes(self.result_bytes)}"
        if self.scratch_bytes:
            total += f", scratch files {format_bytes(self.scratch_bytes)}"
        return wrapped([*lines, "", total, *(f"Note: {note}" for note in self.notes)])


SHOWN_VALUES = 6
"""Most values that a plan lists."""


def shown_values(values: tuple[Any, ...]) -> str:
    """List values, or the first and last ones if there are many."""
    texts = [value_text(value) for value in values]
    if len(texts) > SHOWN_VALUES:
        texts = [*texts[: SHOWN_VALUES - 2], "...", texts[-1]]
    return ", ".join(texts)


def value_text(value: Any) -> str:
    """Write a value as a label: numbers without needless digits."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)
