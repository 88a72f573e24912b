"""What a process may use, of what the machine has."""

from __future__ import annotations

import os
import resource

import pytest

from maxslices.api.resources import budgets_here
from maxslices.devices.cpu import CpuBackend
from maxslices.errors import DoesNotFitError
from maxslices.system import resource_limits
from maxslices.system.resource_limits import core_limit, memory_limits

MB = 10**6


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A process in control groups, as the kernel describes it; function that makes a group."""
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "status").write_text("VmRSS:\t 1000 kB\nVmSize:\t 5000 kB\n")
    monkeypatch.setattr(resource_limits, "PROC", folder)
    for name in list(os.environ):
        if name.startswith("SLURM"):
            monkeypatch.delenv(name)

    def make(cgroup, mounts, files):
        (folder / "cgroup").write_text(cgroup)
        (folder / "mountinfo").write_text(mounts.format(root=tmp_path))
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))

    return make


MOUNT_2 = "30 23 0:26 / {root}/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_1 = (
    "33 25 0:29 / {root}/m rw - cgroup cgroup rw,memory\n"
    "34 25 0:30 / {root}/c rw - cgroup cgroup rw,cpu,cpuacct\n"
)


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "expected"),
    [
        pytest.param(
            "0::/job/step\n",
            MOUNT_2,
            {
                **{"cg/job/step/memory.max": "max", "cg/job/memory.max": 500 * MB},
                **{"cg/job/step/memory.current": 200 * MB, "cg/job/memory.current": 450 * MB},
                "cg/job/memory.stat": f"anon 1\ninactive_file {30 * MB}\nslab 3\n",
            },
            [(500 * MB, 80 * MB)],
            id="version 2, and those above it",
        ),
        pytest.param(
            "0::/j\n",
            MOUNT_2,
            {
                **{"cg/j/memory.current": 100 * MB, "cg/j/memory.max": 500 * MB},
                "cg/j/memory.high": 400 * MB,
            },
            [(400 * MB, 300 * MB), (500 * MB, 400 * MB)],
            id="slowed down before it is killed",
        ),
        pytest.param(
            "4:memory:/docker/abc\n0::/\n",
            MOUNT_1,
            {
                "m/docker/abc/memory.limit_in_bytes": 220 * MB,
                "m/docker/abc/memory.usage_in_bytes": 90 * MB,
                "m/docker/memory.limit_in_bytes": 2**63 - 4096,
                "m/docker/memory.usage_in_bytes": 1,
            },
            [(220 * MB, 130 * MB)],
            id="version 1",
        ),
        pytest.param(  # inside, the kernel still names the group as the host sees it
            "0::/docker/abc\n",
            "30 23 0:26 /docker/abc {root}/cg rw - cgroup2 cgroup2 rw\n",
            {"cg/memory.max": 100 * MB, "cg/memory.current": 40 * MB},
            [(100 * MB, 60 * MB)],
            id="a container, whose group is the root of its mount",
        ),
        pytest.param("", "", {}, [], id="no groups"),
    ],
)
def test_control_groups_limit_memory(proc, cgroup, mounts, files, expected):
    proc(cgroup, mounts, files)
    assert [(each.limit_bytes, each.free_bytes) for each in memory_limits()] == expected


@pytest.mark.parametrize(
    ("variables", "limit"),
    [
        ({"SLURM_MEM_PER_NODE": "2000"}, 2000),
        ({"SLURM_MEM_PER_CPU": "500", "SLURM_CPUS_ON_NODE": "3"}, 1500),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
    ],
)
def test_a_job_of_slurm(proc, monkeypatch, variables, limit):
    proc("", "", {})
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [each.limit_bytes for each in memory_limits()] == ([limit * 2**20] if limit else [])


def test_a_limit_on_address_space(proc, monkeypatch):
    proc("", "", {})
    monkeypatch.setattr(resource, "getrlimit", lambda which: (10**9, 2 * 10**9))
    (limit,) = memory_limits()
    assert limit.free_bytes == 10**9 - 5000 * 1024 - 2**28


JOB_1 = {"c/job/cpu.cfs_quota_us": "400000", "c/job/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("cgroup", "files", "slurm", "cores"),
    [
        ("0::/job\n", {"cg/job/cpu.max": "150000 100000"}, "", 2),
        ("0::/job\n", {"cg/job/cpu.max": "max 100000"}, "", None),
        ("0::/job\n", {"cg/job/cpu.max": "10000 100000"}, "", 1),
        ("0::/job\n", {"cg/cpu.max": "300000 100000", "cg/job/cpu.max": "max 100000"}, "", 3),
        ("3:cpu,cpuacct:/job\n", JOB_1, "", 4),
        ("3:cpu,cpuacct:/job\n", JOB_1, "2", 2),
        ("", {}, "", None),
    ],
)
def test_cores_of_groups_and_of_slurm(proc, monkeypatch, cgroup, files, slurm, cores):
    proc(cgroup, MOUNT_1 + MOUNT_2, files)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", slurm)
    assert core_limit() == cores


def test_a_budget_beyond_the_limit_is_refused_with_both_numbers(proc):
    proc("0::/j\n", MOUNT_2, {"cg/j/memory.max": 220 * MB, "cg/j/memory.current": 90 * MB})
    assert budgets_here(CpuBackend(), "130MB", None).budget_bytes == 130 * MB
    with pytest.raises(DoesNotFitError, match=r"131 MB .* leaves 130 MB of 220 MB"):
        budgets_here(CpuBackend(), "131MB", None)
