"""Plans of a command that runs several scans: one for each shape."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..pipeline import ScanSpec
from ..planner import Plan


@dataclass(slots=True)
class PlansByShape:
    """Plans made for earlier scans, all with the same pipeline, device and budgets."""

    _made: dict[ScanSpec, tuple[ScanSpec, Plan]] = field(default_factory=dict)

    def find(self, scan: ScanSpec) -> Plan | None:
        """Plan for a scan of the same shapes and dtypes, under its name; None if there is none."""
        before, made = self._made.get(replace(scan, name=""), (None, None))
        if before is None or made is None:
            return None
        sides = {"flats", "darks"}
        texts = zip(before.says_of_frames(sides), scan.says_of_frames(sides), strict=True)
        renamed = dict(texts)
        return replace(
            made,
            scan=f"{scan.name}: {scan.projections}",
            notes=tuple(renamed.get(note, note) for note in made.notes),
        )

    def keep(self, scan: ScanSpec, plan: Plan) -> None:
        """Keep a plan for further scans."""
        self._made[replace(scan, name="")] = scan, plan
