"""Run parts and print the table; see the package's docstring."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import platform
import time
import traceback
from pathlib import Path

from . import __doc__ as what
from .machine import cp, empty_device
from .rows import Row, short, table

PARTS = {
    "link": "flat-field and minus-log, and Paganin, from host memory to host memory",
    "httomo": "the pipeline of httomo with the same methods, beside httomo",
    "large": "a 60 GB intermediate in a scratch file",
}


def machine() -> str:
    """Return what this ran on."""
    if cp is None:
        return f"{platform.processor() or platform.machine()}, no GPU"
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    driver = cp.cuda.runtime.driverGetVersion()
    return f"{name}, CUDA driver {driver // 1000}.{driver % 1000 // 10}, CuPy {cp.__version__}"


def write(path: Path | None, rows: list[Row], failures: dict[str, str]) -> None:
    """Write the figures so far, if a file was asked for."""
    if path is None:
        return
    entries = [{**dataclasses.asdict(r), "ratio": r.ratio, "met": r.passed} for r in rows]
    path.write_text(
        json.dumps({"machine": machine(), "rows": entries, "failures": failures}, indent=1)
    )


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="goals", description=(what or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="as often as wanted")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; figures say nothing")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--folder", type=Path, help="where files go; by default a temporary one")
    options = parser.parse_args()
    rows: list[Row] = []
    failures: dict[str, str] = {}
    for name in options.part or PARTS:
        began = time.perf_counter()
        print(f"-- {name}: {PARTS[name]}", flush=True)
        try:
            part = importlib.import_module(f"{__package__}.part_{name}")
            for row in part.rows(options.quick, options.folder):
                rows.append(row)
                write(options.json, rows, failures)
                print(f"   {row.what}: {row.figure:.5g} {row.unit} {row.note}", flush=True)
        except Exception:  # noqa: BLE001  what one part does must not cost the others
            failures[name] = traceback.format_exc()
            print(failures[name], flush=True)
        empty_device()
        print(f"   took {time.perf_counter() - began:.1f} s", flush=True)
    print(f"\n{machine()}, {datetime.date.today()}\n")
    print(table(rows))
    for name, text in failures.items():
        print(f"{name} failed: {short(text)}")
    write(options.json, rows, failures)


if __name__ == "__main__":
    main()
