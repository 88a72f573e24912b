"""Keeps a process on the cores next to its GPU, and so what it allocates in the memory there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PCI_DEVICES = Path("/sys/bus/pci/devices")
"""What the kernel says of devices; another folder in tests."""
_TASKS = Path("/proc/self/task")


def stay_near(number: int) -> None:
    """Bind all threads of this process to the cores of the NUMA node of a GPU, by CUDA's number.

    Of these only the cores that the process was given (by SLURM, numactl or a control group); all
    of those if none is of that node. On a machine with one node, and where the node is not known,
    the kernel lists all cores, and nothing changes.
    """
    import cupy

    near = _cores_near(cupy.cuda.runtime.deviceGetPCIBusId(number))
    if not near:
        return
    given = os.sched_getaffinity(0)
    if near & given in (set(), given):
        return
    for task in _TASKS.iterdir():  # a call for the process binds the thread that makes it
        with suppress(OSError):  # the thread has ended
            os.sched_setaffinity(int(task.name), near & given)


def _cores_near(pci_id: str) -> set[int]:
    """Cores next to a PCI device, such as ``0000:1B:00.0``; none if the kernel says nothing."""
    try:
        text = (PCI_DEVICES / pci_id.lower() / "local_cpulist").read_text().strip()
    except OSError:
        return set()
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
