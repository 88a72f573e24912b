"""A plan as a table of at most 100 columns."""

from __future__ import annotations

from ..units import format_bytes
from .plan import Plan, SectionPlan

WIDTH = 100
_SLICES = {0: "projections", 1: "sinograms"}


def plan_table(plan: Plan) -> str:
    """Return the plan as text: a table a section, and what it all takes."""
    lines = [
        f"Plan for {plan.scan}",
        f"Device {plan.device}: {format_bytes(plan.budget_bytes)} allowed"
        + (
            f", {format_bytes(plan.reserved_bytes)} of it reserved for the CUDA context"
            if plan.reserved_bytes
            else ""
        )
        + f"; host memory {format_bytes(plan.host_budget_bytes)} allowed",
    ]
    for number, section in enumerate(plan.sections, start=1):
        lines += ["", *_section_lines(number, section)]
    lines.append("")
    total = f"Results on disk {format_bytes(plan.result_bytes)}"
    if plan.scratch_bytes:
        total += f", scratch files {format_bytes(plan.scratch_bytes)}"
    lines.append(total)
    lines += [f"Note: {note}" for note in plan.notes]
    return "\n".join(line[:WIDTH] for line in lines)


def _section_lines(number: int, section: SectionPlan) -> list[str]:
    kind = _SLICES[section.slice_dim]
    halo = f", halo {section.halo[0]}+{section.halo[1]}" if any(section.halo) else ""
    blocks = "1 block" if section.n_blocks == 1 else f"{section.n_blocks} blocks"
    lines = [
        f"Section {number}: {section.n_slices} {kind} in {blocks} of {section.block}{halo} "
        f"-> {section.destination}",
        f"  {'method':<34}{'output':<28}{'peak/block':>12}  estimate",
    ]
    highest = max(section.steps, key=lambda step: step.estimated_bytes)
    for step in section.steps:
        mark = "*" if step is highest else " "
        lines.append(
            f" {mark}{step.name[:33]:<34}{str(step.output)[:27]:<28}"
            f"{format_bytes(step.estimated_bytes):>12}  {step.estimator}"
        )
    side = f", {format_bytes(section.side_bytes)} of flats and darks" if section.side_bytes else ""
    lines.append(
        f"  peak {format_bytes(section.estimated_bytes)} of "
        f"{format_bytes(section.available_bytes)}{side}; host {format_bytes(section.host_bytes)}; "
        f"limited by {section.limited_by}"
    )
    lines.append(f"  {section.why}")
    return lines
