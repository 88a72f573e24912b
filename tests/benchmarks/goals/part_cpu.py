"""Two CPU cores without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .children import watched
from .rows import Row


def rows(quick: bool, folder: Path | None) -> Iterator[Row]:
    """Yield the figures."""
    shape = [60, 32, 64] if quick else [240, 256, 1024]
    for steps in (
        ["dark_flat_field_correction", "minus_log"],
        ["dark_flat_field_correction", "minus_log", "median_filter"],
    ):
        answer, _ = watched("two_cores", {"shape": shape, "steps": steps})
        name = " + ".join(
            step.replace("dark_flat_field_correction", "flat-field") for step in steps
        )
        alone = {k: answer[k] for k in ("read_s", "compute_s", "write_s")}
        for k, seconds in alone.items():
            yield Row("cpu", f"{name}: {k.removesuffix('_s')} alone", seconds, "s")
        yield Row("cpu", f"{name}: compute alone, 2 threads", answer["compute_2_s"], "s")
        limit_s = max(alone.values())
        yield Row("cpu", f"{name}: run", answer["wall_s"], "s", 1.1 * limit_s, note=answer["said"])
        alone_s = sum(answer[f"{kind}_cpu_s"] for kind in ("read", "compute", "write"))
        note = f"{alone_s:.3f} s for reading, computing and writing alone"
        yield Row("cpu", f"{name}: processor time", answer["wall_cpu_s"], "s", note=note)
        yield Row("cpu", f"{name}: as in a plain loop", float(answer["same"]), "", 1.0, "more")
