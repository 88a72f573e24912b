"""What a run was made for, to see whether it can go on: methods' sources, device and input."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ...devices import Backend
from ...devices.backend import device_name
from ...estimate.request_key import package_version, source_hash
from ...io.scans.frame_source import FileStamp
from ...pipeline import Pipeline


def run_identity(
    pipeline: Pipeline, backend: Backend, files: Sequence[Path] | None
) -> dict[str, Any]:
    """Describe a run in plain values.

    Parameters
    ----------
    pipeline : Pipeline
        Its methods.
    backend : Backend
        Its device.
    files : sequence of Path, optional
        Files and folders that it reads; None if its scan is an array in memory.
    """
    methods = [
        {
            "method": step.meta.full_name,
            "source": source_hash(step.meta.function),
            "package": package_version(step.meta.function),
        }
        for step in pipeline.steps
    ]
    return {
        "device": device_name(backend),
        "methods": methods,
        "input": None if files is None else input_state(files),
    }


def can_go_on(identity: dict[str, Any]) -> bool:
    """True if it can be told whether the input of a run is the same as before."""
    return identity.get("input") is not None


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences of a run from what it was before it was stopped, a phrase each."""
    found = []
    if before["device"] != now["device"]:
        found.append(f"it ran on {before['device']}, and here is {now['device']}")
    for old, new in zip(before["methods"], now["methods"], strict=False):
        if old.get("package") != new["package"]:
            found.append(f"{new['method']} is of {new['package']}, and was of {old.get('package')}")
        elif old.get("source") != new["source"]:
            found.append(f"the source of {new['method']} has changed")
    if before["input"] is None or now["input"] is None:
        return [*found, "its scan is an array in memory, which may be another one"]
    return [*found, *input_changes(before["input"], now["input"])]


def input_changes(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """Differences of the files that a run reads from those that it read, a phrase each."""
    found = []
    if len(before) != len(now):
        found.append(f"it read {len(before)} files, and now {len(now)}")
    for old, new in zip(before, now, strict=False):
        names = [name for name in old if name != "path" and old[name] != new.get(name)]
        if names and new["path"] != old["path"]:
            found.append(f"it read {old['path']}, and {new['path']} is another file")
        elif names:
            what = ", ".join(
                f"{name} {_shown(name, old[name])} before, {_shown(name, new.get(name))} now"
                for name in names
            )
            found.append(f"{new['path']} has changed ({what})")
    return found


def _shown(name: str, value: Any) -> Any:
    """A time in nanoseconds as a date; what else there is, and what is no time, as it is."""
    if name != "time" or not isinstance(value, int) or not 0 <= value < 2**63:
        return value
    return datetime.fromtimestamp(value / 1e9).isoformat(" ", "milliseconds")


def input_state(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Describe the files and folders that a run reads, so that another state of them is seen.

    Raises
    ------
    OSError
        If one cannot be looked at.
    """
    return [_state_of(path) for path in files]


def _state_of(path: Path) -> dict[str, Any]:
    """Size, time of change and inode of a file; of a folder those of all files in it."""
    entry: dict[str, Any] = {"path": str(path.absolute())}
    if not path.is_dir():
        stamp = FileStamp.of(path)
        return {**entry, "bytes": stamp.n_bytes, "time": stamp.time_ns, "inode": stamp.inode}
    digest, names = hashlib.sha256(), sorted(os.listdir(path))
    for name in names:
        stamp = FileStamp.of(path / name)
        text = f"{name}\0{stamp.n_bytes} {stamp.time_ns} {stamp.inode}\0"
        digest.update(text.encode(errors="surrogateescape"))
    return {**entry, "files": len(names), "their state": digest.hexdigest()[:16]}
