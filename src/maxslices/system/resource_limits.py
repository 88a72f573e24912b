"""Memory and cores that this process may use: limits of control groups, SLURM and the process.

In a container or a job the free memory of the machine is irrelevant, because a process that exceeds
the limit of its group is killed. Files and their meaning follow the kernel's documentation
(cgroup-v1/memory.rst and cgroup-v2.rst, and sched-bwc.rst for cores).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path

from ..core.units import MIB

_NO_LIMIT = 2**60
"""Values from here on mean no limit. Version 1 writes nearly 2^63 for no limit."""
PROC = Path("/proc/self")
"""The kernel's files about this process; another folder in tests."""
_AS_SPARE_BYTES = 2**28
"""Address space in addition to memory. The heap of each thread reserves 64 MiB, and libraries that
are loaded during a run map some 100 MB."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit on memory."""

    name: str
    """Its origin, for messages."""
    limit_bytes: int
    """The limit."""
    free_bytes: int
    """The unused part."""
    is_of_process: bool = False
    """Whether each process has its own limit. Otherwise a job or group shares it."""


def available_bytes() -> int:
    """Memory of the machine that can be used without swapping, as the kernel estimates."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable: Linux 3.14 or newer is needed")


def process_limit(name: str) -> int | None:
    """Soft limit of this process, such as ``RLIMIT_AS``; None without one, as on Windows."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    limit, _ = resource.getrlimit(getattr(resource, name))
    return None if limit == resource.RLIM_INFINITY else limit


def memory_limits() -> list[MemoryLimit]:
    """All limits on the memory of this process, the tightest first."""
    return sorted((*_group_limits(), *_slurm_limits(), *_process_limits()), key=_free)


def _free(limit: MemoryLimit) -> int:
    return limit.free_bytes


def core_limit() -> int | None:
    """Cores that CPU quotas and SLURM allow, rounded up; None without a limit."""
    limits = []
    for folder in group_folders("cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        both = _words(folder / "cpu.max")
        if len(both) == 2 and both[0].isdigit():
            quota, period = int(both[0]), int(both[1])
        if quota is not None and period and quota > 0:
            limits.append(max(1, ceil(quota / period)))
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if n_cores := _variable(name):
            limits.append(n_cores)
            break
    return min(limits, default=None)


def _group_limits() -> Iterator[MemoryLimit]:
    """Limits of the control groups of this process, and of their parents."""
    for folder in group_folders("memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.high", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is None or usage is None or limit >= _NO_LIMIT:
                continue
            # Cached pages of files count as used, but are freed when memory is needed.
            cached = _entries(folder / "memory.stat").get(cache_name, 0)
            name = f"the control group {folder} ({limit_name})"
            yield MemoryLimit(name, limit, max(0, limit - usage + cached))


def group_folders(controller: str) -> tuple[Path, ...]:
    """Folders of the control groups of this process, versions 1 and 2, its own group first."""
    return _folders_of(controller, PROC, tuple(_lines(PROC / "cgroup")))


@lru_cache(maxsize=8)
def _folders_of(controller: str, proc: Path, groups: tuple[str, ...]) -> tuple[Path, ...]:
    places: dict[str, str] = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            places["cgroup" if controllers else "cgroup2"] = path
    folders: list[Path] = []
    for line in _lines(proc / "mountinfo"):
        before, _, after = line.partition(" - ")
        kind, options = after.split()[0], after.split()[-1].split(",")
        if kind not in places or (kind == "cgroup" and controller not in options):
            continue
        root, mount = before.split()[3:5]
        inner = os.path.relpath(places[kind], root)
        # In a container the path may be above the mount, whose root is the container's group.
        parts = () if inner.startswith("..") or inner == "." else Path(inner).parts
        folders += [Path(mount, *parts[:n]) for n in range(len(parts), -1, -1)]
    return tuple(folders)


def _slurm_limits() -> Iterator[MemoryLimit]:
    """Memory of a SLURM job, which not every cluster enforces with control groups."""
    total = _variable("SLURM_MEM_PER_NODE")
    if total is None and (per_core := _variable("SLURM_MEM_PER_CPU")):
        total = per_core * (_variable("SLURM_CPUS_ON_NODE") or 1)
    if total:  # 0 is all of the node
        limit = total * MIB
        yield MemoryLimit("SLURM's job", limit, max(0, limit - _status_bytes("VmRSS")))


def _process_limits() -> Iterator[MemoryLimit]:
    """Limit of the process's address space (``ulimit -v``)."""
    limit = process_limit("RLIMIT_AS")
    if limit is not None and limit < _NO_LIMIT:
        free = limit - _status_bytes("VmSize") - _AS_SPARE_BYTES
        name = "the process's address space (ulimit -v)"
        yield MemoryLimit(name, limit, max(0, free), is_of_process=True)


def _status_bytes(name: str) -> int:
    for line in _lines(PROC / "status"):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not on every system
        return []


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _number(path: Path) -> int | None:
    words = _words(path)
    try:
        return int(words[0]) if words else None
    except ValueError:  # "max"
        return None


def _entries(path: Path) -> dict[str, int]:
    return {words[0]: int(words[1]) for line in _lines(path) if len(words := line.split()) == 2}


def _variable(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
