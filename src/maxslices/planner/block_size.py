"""How many slices a block has, and why."""

from __future__ import annotations

from numbers import Integral
from typing import Literal

from ..errors import DoesNotFitError, UsageError
from ..model.units import format_bytes
from .budgets import Limits, Room
from .costs import SectionCost
from .placement import Route

BlockChoice = int | Literal["auto", "max"]
AUTO_SLICES = 32
"""Slices from which a block's fixed costs (calls, launches, seeks) hardly count. Larger ones are
tried where computing takes the time."""
AUTO_BLOCKS = 32
"""Blocks from which larger ones gain nothing: nothing is computed before the first one is there,
on the CPU one of them is measured, which takes longer, and the progress bar gets coarser."""
MIN_BLOCKS = 4
"""Blocks that are left where larger ones are tried: fewer overlap too little."""
FIRST_SLICES = 6
"""Slices that the first block has at least: in fewer, what a call takes beside its slices counts
more than what nothing is copied out for."""
MIN_TRIED_BLOCKS = 16
"""Blocks that a section must have for a few of them to be tried in another size."""
CALL_SHARE = 0.05
"""Share that what a call takes beside its slices may have of what these take."""
MOVED_BYTES_PER_S = 20e9
"""What a link, or a disk's cache, moves at least: slices that are computed faster wait for it in
any case."""
UNITS = {0: "projection", 1: "sinogram"}


def check_block(block: BlockChoice) -> None:
    """Require that a block size can be meant.

    Raises
    ------
    UsageError
        If it is neither "auto", "max" nor a positive number.
    """
    is_number = isinstance(block, Integral) and not isinstance(block, bool) and block >= 1
    if not is_number and block not in ("auto", "max"):
        raise UsageError(f"block must be 'auto', 'max' or a positive number, not {block!r}")


def wanted_block(block: BlockChoice, cost: SectionCost) -> int:
    """Return the block that is aimed at, whether it fits or not."""
    total = cost.n_slices
    if block == "max":
        return total
    if not isinstance(block, str):
        return min(int(block), total)
    wanted = max(AUTO_SLICES, -(-total // AUTO_BLOCKS), 4 * sum(cost.section.halo))
    return min(_paced(wanted, cost), total)


def _paced(block: int, cost: SectionCost) -> int:
    """Return a block, or one of twice the size and so on where calls were seen to be slow."""
    total, (call_s, slice_s) = cost.n_slices, cost.pace_s
    ends = (spec.with_slices(cost.section.slice_dim, 1) for spec in (cost.input, cost.output))
    moved_s = max(spec.nbytes for spec in ends) / MOVED_BYTES_PER_S
    while (
        2 * block * MIN_BLOCKS <= total
        and call_s > CALL_SHARE * block * slice_s
        and call_s + block * slice_s > block * moved_s
    ):
        block *= 2
    return block


def choose_block(block: BlockChoice, route: Route, room: Room) -> tuple[int, int, str]:
    """Choose a section's block.

    Returns
    -------
    (int, int, str)
        The block, the largest that fits, and what decided.

    Raises
    ------
    DoesNotFitError
        If the block asked for does not fit.
    """
    cost = route.cost
    largest, total, wanted = (
        room.max_block(route),
        cost.n_slices,
        wanted_block(block, cost),
    )
    bound = room.bound(route)
    fits = "all fit" if largest >= total else f"{bound} allow {largest}"
    if block == "max":
        return largest, largest, f"block max: {fits}"
    if not isinstance(block, str):
        if wanted > largest:
            unit, needed = UNITS[cost.section.slice_dim], route.device_bytes(wanted)
            raise DoesNotFitError(
                f"a block of {wanted} {unit}s needs {format_bytes(needed)}, and "
                f"{bound} allow {largest}: use --block {largest} or --block max"
            )
        return wanted, largest, f"block as asked for; {fits}"
    if wanted >= total:
        if largest >= total:
            return total, largest, f"block auto: {fits} in one block"
        return _even(largest, total), largest, f"block auto: {bound} allow no more than {largest}"
    part = room.max_part(route)
    if part >= wanted:
        busy = f"{wanted} keep it busy"
        if _paced(1, cost) > 1:
            call_s, slice_s = cost.pace_s
            busy += f" (a call takes {1e3 * call_s:.2g} ms and {1e3 * slice_s:.2g} ms a slice)"
        return _even(wanted, total), largest, f"block auto: {busy}; {fits}"
    if largest >= total and 2 * part < wanted:
        return total, largest, f"block auto: {fits} in one block, but few beside others"
    largest = part
    return _even(largest, total), largest, f"block auto: {bound} allow no more than {largest}"


def _even(block: int, total: int) -> int:
    """Return the smallest block that makes no more blocks than `block` does."""
    n_blocks = -(-total // block)
    return -(-total // n_blocks)


def first_blocks(route: Route, chosen: int, room: Room) -> tuple[int, ...]:
    """Return smaller blocks to begin with, increasing; together some of the chosen ones.

    Nothing is computed before the first block is there, and nothing goes out before it is
    computed. From there on each is about a quarter larger than the one before: then none is
    waited for by the way out, if that takes longest.

    Not where they are read from a file: some are read while flats and darks come, and large ones
    go further. A method that keeps something between calls, such as FFT plans, would make it
    for each size. And what is free after smaller blocks is in pieces, of no use where memory is
    short.
    """
    cost = route.cost
    keeps = any(step.model.kept_bytes(chosen) for step in cost.steps)
    is_long = cost.n_slices >= 2 * MIN_BLOCKS * chosen
    is_read = route.origin == "scratch file" or (route.origin == "scan" and not route.in_memory)
    if is_read or keeps or not is_long or not route.overlaps or any(cost.section.halo):
        return ()
    if not room.fits(route, 4 * chosen):
        return ()
    found, block = [], 4 * chosen // 5
    while block >= FIRST_SLICES:
        found.append(block)
        block = 4 * block // 5
    rest = -sum(found) % chosen  # where bands of a file end, blocks go on ending
    if rest >= FIRST_SLICES:
        found.append(rest)
    elif found:
        found[-1] += rest
    return tuple(sorted(found)) if len(found) > 1 else ()


def larger_blocks(route: Route, chosen: int, room: Room) -> tuple[tuple[int, int], ...]:
    """Return the blocks that a run may grow to where that turns out to be faster.

    A larger block makes calls and launches count less. Whether they count at all is seen when
    the first blocks have run. A section of few blocks has none to try it on.

    Returns
    -------
    tuple of (int, int)
        Blocks, each twice the one before, and the peak on the device with each.
    """
    found, block, total = [], 2 * chosen, route.cost.n_slices
    if total // chosen < MIN_TRIED_BLOCKS:
        return ()
    while total // block >= MIN_BLOCKS and room.fits(route, block):
        found.append((block, route.device_bytes(block)))
        block *= 2
    return tuple(found)


def lacking_bytes(route: Route, room: Room) -> int:
    """Return how much more memory a section needs for one slice; at most 0 if it fits."""
    if room.max_block(route):
        return 0  # all of them perhaps, with nothing on its way, where one beside others does not
    lacking = route.device_bytes(1) - room.device_bytes
    if room.host_bytes is None:
        return lacking
    return max(lacking, route.host_bytes(1) - room.host_bytes)


def does_not_fit(route: Route, limits: Limits, room: Room) -> DoesNotFitError:
    """Return the error that says what a section needs for one slice, and what would help."""
    beside, cost = "", route.cost
    if room.stores_bytes:
        beside = f" beside {format_bytes(room.stores_bytes)} that are kept in memory"
    worst, unit = cost.worst(1), UNITS[cost.section.slice_dim]
    needed = route.device_bytes(1)
    if needed <= room.device_bytes and room.host_bytes is not None:
        lacking = route.host_bytes(1) - room.host_bytes
        return DoesNotFitError(
            f"moving one {unit} of {worst.step.meta.name} to the device and back needs "
            f"{format_bytes(route.host_bytes(1))} of host memory, and "
            f"{format_bytes(max(room.host_bytes, 0))} are available{beside}: allow "
            f"--host-memory {ask_for(limits.host_budget_bytes + lacking)}"
        )
    dims = "x".join(map(str, worst.request.other_dims))
    n_slices = (
        f"one {unit}" if worst.looked_at < 2 else f"the {worst.looked_at} {unit}s it looks at"
    )
    parts = []
    if any(cost.section.halo):
        parts.append("with a halo of {}+{}".format(*cost.section.halo))
    side_bytes = cost.side.bytes(1)
    if side_bytes:
        parts.append(f"{format_bytes(side_bytes)} of flats and darks included")
    about = f" ({', '.join(parts)})" if parts else ""
    lacking = needed - room.device_bytes
    return DoesNotFitError(
        f"{worst.step.meta.name} needs {format_bytes(needed)} for {n_slices} of {dims} "
        f"{worst.input.dtype}{about}, and {format_bytes(max(room.device_bytes, 0))} are "
        f"available{beside}: allow --memory {ask_for(limits.budget_bytes + lacking)}, or bin or "
        "crop the scan"
    )


def ask_for(n_bytes: int) -> str:
    """Write an amount of memory as the command line takes it, rounded up to three digits."""
    units = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
    unit, factor = next((u for u in units if n_bytes >= u[1]), units[-1])
    value = n_bytes / factor
    step = factor // (100 if value < 10 else 10 if value < 100 else 1)
    return f"{-(-n_bytes // step) * step / factor:g}{unit}"
