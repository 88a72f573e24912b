"""Resources of a run: the device, budgets and sources of estimates."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.block_memory import UNMEASURED_RESERVE_BYTES
from ..core.units import format_bytes, parse_bytes
from ..devices import Backend, select_backend
from ..devices.backend import check_device_name
from ..devices.cpu import CpuBackend
from ..errors import DeviceError, DoesNotFitError, UsageError
from ..estimate import ModelResolver, Records
from ..pipeline import Pipeline, ScanSpec
from ..planner import Budgets
from ..system.resource_limits import MemoryLimit, memory_limits
from ..system.threads import MOST_THREADS, N_THREADS


def measures(pipeline: Pipeline, estimator: str | None) -> bool:
    """Whether an estimate is measured, or was measured before."""
    undeclared = any(step.meta.estimator is None for step in pipeline.steps)
    return undeclared or estimator in ("recorded", "replayed", "probed")


def card_here(device: str) -> Backend | None:
    """Return a GPU of this machine, or None if it does not exist."""
    try:
        backend = select_backend(device)
    except DeviceError:
        return None
    return backend if backend.kind == "cuda" else None


def chooser_for(
    scan: ScanSpec,
    budgets: Budgets,
    backend: Backend | None,
    estimator: str | None,
) -> ModelResolver:
    """Make the resolver of memory models for a scan on a device."""
    side = {name: spec for name in ("flats", "darks") for spec in scan.frames({name})}
    return ModelResolver(
        budgets.kind,
        backend=backend,
        records=Records(),
        available_bytes=budgets.budget_bytes - budgets.reserved_bytes,
        side=side,
        forced=estimator,
    )


def budgets_of(
    device: str, memory: str | int | None, host_memory: str | int | None, is_here: bool
) -> tuple[Budgets, Backend | None]:
    """Return the budgets on a device and the device, or None for a GPU of another machine."""
    check_device_name(device)
    is_cuda = device.startswith("cuda") or (device == "auto" and not is_here)
    if memory is None or not is_cuda:
        try:
            backend = select_backend(device)
        except DeviceError as error:
            raise DeviceError(
                f"{error}; to plan for a GPU of another machine, give its --memory"
            ) from None
        return budgets_here(backend, memory, host_memory), backend
    host = CpuBackend().free_bytes() if host_memory is None else parse_bytes(host_memory)
    name = "cuda" if device == "auto" else device
    card = card_here(device) if is_here else None
    reserved = UNMEASURED_RESERVE_BYTES if card is None else card.reserved_bytes
    return Budgets(name, parse_bytes(memory), host, reserved, MOST_THREADS), card


def budgets_here(
    backend: Backend, memory: str | int | None, host_memory: str | int | None
) -> Budgets:
    """Return the budgets on a device of this machine. The default is the free memory."""
    free = backend.free_bytes()
    budget = free if memory is None else parse_bytes(memory)
    host_budget = host_memory if backend.kind == "cuda" else memory
    if host_budget is not None:
        check_limits(parse_bytes(host_budget), memory_limits())
    if backend.kind == "cpu":
        if host_memory is not None:
            raise UsageError(
                "on the CPU host memory is the device's memory: give only memory (--memory)"
            )
        return Budgets(backend.name, budget, budget, n_threads=N_THREADS)
    host = CpuBackend().free_bytes() if host_memory is None else parse_bytes(host_memory)
    return Budgets(backend.name, budget, host, backend.reserved_bytes, MOST_THREADS)


def check_limits(
    wanted_bytes: int, limits: Sequence[MemoryLimit], *, n_processes: int = 1, place: str = ""
) -> None:
    """Check that budgets in host memory are within the limits of processes.

    Parameters
    ----------
    wanted_bytes : int
        Budget of each process.
    limits : sequence of MemoryLimit
        Limits of one of the processes.
    n_processes : int
        Processes on the machine.
    place : str
        Name of the machine, if it is not this one.

    Raises
    ------
    DoesNotFitError
        If a limit is exceeded, as the run would be killed.
    """
    for limit in limits:
        n_sharing = 1 if limit.is_of_process else n_processes
        if n_sharing * wanted_bytes > limit.free_bytes:
            each = f" for each of {n_sharing} workers" if n_sharing > 1 else ""
            raise DoesNotFitError(
                f"{format_bytes(wanted_bytes)} of memory are allowed{each}, but {limit.name}"
                f"{f' on {place}' if place else ''} leaves {format_bytes(limit.free_bytes)} of "
                f"{format_bytes(limit.limit_bytes)}: allow less, or leave it out"
            )
