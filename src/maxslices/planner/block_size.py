"""Number of slices in a block."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal

from ..core.arrays import SLICE_NAMES
from ..core.units import format_bytes
from ..errors import DoesNotFitError, UsageError
from .placement import Available, Budgets, Placement
from .section_model import SectionModel

BlockChoice = int | Literal["auto", "max"]
AUTO_SLICES = 32
"""Slices from which the fixed costs of a block (calls, launches, seeks) hardly matter. Flat-field
and minus-log took the same time in blocks of 16, 32 and 64 slices, Paganin 5 % less in 32 than in
16 (H200, docs/benchmarks/tried.md)."""
AUTO_BLOCKS = 32
"""Number of blocks of a worker's share of a scan, if they are then larger than `AUTO_SLICES`. With
fewer blocks computing starts later, the measured block on the CPU takes longer, and the progress
bar is coarser."""
MIN_BLOCKS = 4
"""Least number of consecutive blocks after enlarging them. With fewer, reading and writing hardly
overlap with computing."""
SHARES = 2
"""Least shares of each worker, if there are several. Shares do not overlap. On four H200s, LPRec3d
and the stripe removal before it, saved, took 4.2 s with blocks of 64 rows (two shares of four
blocks on each), and 6.5 s with blocks of 256 rows (two shares of one block, 2026-11-27)."""
CALL_SHARE = 0.05
"""Largest ratio of a call's fixed time to the time of its slices. Below it, doubling the block
saves at most 2.5 %."""
MOVED_BYTES_PER_S = 20e9
"""Least transfer rate of a link to a GPU or of a disk's cache. If slices are computed faster,
larger blocks save no time. (The link of one H200 has 55 GB/s, and 34 if four are in use.)"""


def check_block(block: BlockChoice) -> None:
    """Check the block size of a user.

    Raises
    ------
    UsageError
        If it is neither "auto", "max" nor a positive number.
    """
    is_number = isinstance(block, Integral) and not isinstance(block, bool) and block >= 1
    if not is_number and block not in ("auto", "max"):
        raise UsageError(f"block must be 'auto', 'max' or a positive number, not {block!r}")


def wanted_block(block: BlockChoice, section: SectionModel, n_workers: int = 1) -> int:
    """Block to aim at, whether or not it fits. "auto" is at most a worker's share of the slices."""
    total = section.n_slices
    if block == "max":
        return total
    if not isinstance(block, str):
        return min(int(block), total)
    share = -(-total // (AUTO_BLOCKS * n_workers))
    wanted = max(AUTO_SLICES, share, 4 * sum(section.halo), section.least_block)
    return min(_doubled_for_calls(wanted, section, n_workers), -(-total // n_workers))


def _doubled_for_calls(block: int, section: SectionModel, n_workers: int) -> int:
    """Double a block until the fixed time of a call hardly matters.

    It is not doubled if too few blocks would remain for overlap, or if transferring the slices
    takes longer than computing them.
    """
    n_shares = SHARES * n_workers if n_workers > 1 else 1
    share_slices = section.n_slices // n_shares
    call_s, slice_s = section.pace_s
    slices = (spec.with_slices(section.slice_dim, 1) for spec in (section.input, section.output))
    transfer_s = max(one.nbytes for one in slices) / MOVED_BYTES_PER_S
    while True:
        keeps_overlap = 2 * block * MIN_BLOCKS <= share_slices
        is_call_costly = call_s > CALL_SHARE * block * slice_s
        waits_for_link = call_s + block * slice_s <= block * transfer_s
        if not keeps_overlap or not is_call_costly or waits_for_link:
            return block
        block *= 2


def choose_block(
    block: BlockChoice, placement: Placement, available: Available
) -> tuple[int, int, str]:
    """Choose the block of a section by memory, and then by the blocks with equal results.

    Results are equal for multiples of the section's `block_multiple` from its `least_block` on. A
    size set by the user is always used, and the reason contains a warning if results differ.

    Returns
    -------
    (int, int, str)
        The block, the largest that fits, and the reason in words.
    """
    chosen, largest, why = _by_memory(block, placement, available)
    section = placement.section
    total, least, multiple = section.n_slices, section.least_block, section.block_multiple
    if multiple > 1:
        if not isinstance(block, int) and chosen < total:
            chosen = _multiple_of(multiple, chosen, min(largest, total))
        if chosen % multiple and chosen < total:
            why += f"; blocks that are not a multiple of {multiple} give another result"
        else:
            why += f"; a multiple of {multiple}, because other blocks give another result"
    if least > multiple:
        agreeing = (
            None if isinstance(block, int) else _agreeing(chosen, total, least, multiple, largest)
        )
        chosen = agreeing or chosen
        why += f"; blocks below {least} give another result"
        if min(chosen, total % chosen or chosen) < least:
            why += f", and the last block has {total % chosen or chosen}"
    return chosen, largest, why


def _multiple_of(number: int, block: int, most: int) -> int:
    """Next multiple of a number from `block` up to `most`, otherwise the next smaller one."""
    up = -(-block // number) * number
    return up if up <= most else block - block % number or block


def _agreeing(block: int, total: int, least: int, multiple: int, largest: int) -> int | None:
    """Size nearest to `block` for which the last block has at least `least` slices, or None."""
    sizes = [n for n in range(least, min(total, largest) + 1) if n == total or n % multiple == 0]
    sizes.sort(key=lambda size: abs(size - block))
    return next((size for size in sizes if (total % size or size) >= least), None)


def _by_memory(
    block: BlockChoice, placement: Placement, available: Available
) -> tuple[int, int, str]:
    """Block, the largest that fits, and the reason, as if all blocks had equal results.

    `largest` is the number of all slices if they fit in one block, which then overlaps with
    nothing. Otherwise it is `overlapping`: the largest block for which the next one is read at the
    same time.
    """
    section = placement.section
    total, largest = section.n_slices, placement.max_block(available)
    wanted = wanted_block(block, section, placement.n_workers)

    def even(block: int) -> int:
        return _even(block, total, placement.n_workers)

    bound = placement.bound(available)
    fits = "all fit" if largest >= total else f"{bound} allow {largest}"
    if block == "max":
        return largest, largest, f"block max: {fits}"
    if not isinstance(block, str):
        return wanted, largest, f"block as set; {fits}"
    if wanted >= total:
        if largest >= total:
            return total, largest, f"block auto: {fits} in one block"
        return even(largest), largest, f"block auto: {bound} allow no more than {largest}"
    overlapping = placement.max_part(available)
    if overlapping >= wanted:
        busy = f"{wanted} keep the device busy"
        if _doubled_for_calls(1, section, placement.n_workers) > 1:
            call_s, slice_s = section.pace_s
            busy += f" (a call takes {1e3 * call_s:.2g} ms and {1e3 * slice_s:.2g} ms a slice)"
        return even(wanted), largest, f"block auto: {busy}; {fits}"
    if largest >= total and 2 * overlapping < wanted:
        return total, largest, f"block auto: {fits} in one block, but few in several"
    return even(overlapping), overlapping, f"block auto: {bound} allow no more than {overlapping}"


def _even(block: int, total: int, n_workers: int) -> int:
    """Smallest block for which no worker has more blocks than for `block`."""
    n_of_each = -(-total // (block * n_workers))
    return -(-total // (n_of_each * n_workers))


def lacking_bytes(placement: Placement, available: Available) -> int:
    """Memory that a section lacks for one slice, at most 0 if it fits."""
    if placement.max_block(available):
        return 0  # also if only all slices in a single block fit
    lacking = placement.device_bytes(1) - available.device_bytes
    if available.host_bytes is None:
        return lacking
    return max(lacking, placement.host_bytes(1) - available.host_bytes)


def check_fits(
    placements: Sequence[Placement], budgets: Budgets, available: Sequence[Available]
) -> None:
    """Check that one slice of each section fits.

    Raises
    ------
    DoesNotFitError
        For the section that lacks most, with possible remedies.
    """
    pairs = list(zip(placements, available, strict=True))
    placement, left = max(pairs, key=lambda pair: lacking_bytes(*pair))
    if lacking_bytes(placement, left) <= 0:
        return
    texts = [str(does_not_fit(placement, budgets, left))]
    texts += [
        f"{each.name} with {each.spares} takes less memory, but rounds coarsely"
        for each in placement.section.steps
        if each.spares
    ]
    if budgets.kind != "cpu":
        texts.append("--device cpu runs the pipeline on the host")
    raise DoesNotFitError(". ".join(texts))


def does_not_fit(placement: Placement, budgets: Budgets, available: Available) -> DoesNotFitError:
    """Error with the memory that a section needs for one slice, and possible remedies."""
    stores, section = "", placement.section
    if available.stores_bytes:
        stores = f" in addition to {format_bytes(available.stores_bytes)} of stored data"
    worst, unit = section.highest(1), SLICE_NAMES[section.slice_dim]
    needed = placement.device_bytes(1)
    if needed <= available.device_bytes and available.host_bytes is not None:
        lacking = placement.host_bytes(1) - available.host_bytes
        return DoesNotFitError(
            f"moving one {unit} of {worst.name} to the device and back needs "
            f"{format_bytes(placement.host_bytes(1))} of host memory, but "
            f"{format_bytes(max(available.host_bytes, 0))} are available{stores}: allow "
            f"--host-memory {ask_for(budgets.host_budget_bytes + lacking)}"
        )
    dims = "x".join(map(str, worst.input.other_dims(section.slice_dim)))
    n_slices = (
        f"one {unit}" if worst.n_sampled < 2 else f"the {worst.n_sampled} {unit}s that it samples"
    )
    parts = []
    if any(section.halo):
        parts.append("with a halo of {}+{}".format(*section.halo))
    side_bytes = section.side.bytes(1)
    if side_bytes:
        parts.append(f"including {format_bytes(side_bytes)} of flats and darks")
    about = f" ({', '.join(parts)})" if parts else ""
    lacking = needed - available.device_bytes
    return DoesNotFitError(
        f"{worst.name} needs {format_bytes(needed)} for {n_slices} of {dims} "
        f"{worst.input.dtype}{about}, but {format_bytes(max(available.device_bytes, 0))} are "
        f"available{stores}: allow --memory {ask_for(budgets.budget_bytes + lacking)}, or bin or "
        "crop the scan"
    )


def check_block_fits(
    placements: Sequence[Placement], available: Sequence[Available], block: BlockChoice
) -> None:
    """Check that the user's block fits in all sections. One slice is known to fit.

    Raises
    ------
    DoesNotFitError
        For the section that allows fewest slices.
    """
    too_large = []
    for placement, left in zip(placements, available, strict=True):
        largest, wanted = placement.max_block(left), wanted_block(block, placement.section)
        if not isinstance(block, str) and wanted > largest:
            unit, needed = SLICE_NAMES[placement.section.slice_dim], placement.device_bytes(wanted)
            text = f"a block of {wanted} {unit}s needs {format_bytes(needed)}"
            too_large.append((largest, f"{text}, but {placement.bound(left)} allow {largest}"))
    if too_large:
        largest, text = min(too_large)
        raise DoesNotFitError(f"{text}: use --block {largest} or --block max")


def ask_for(n_bytes: int) -> str:
    """Amount of memory in the syntax of the command line, rounded up to three digits."""
    units = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
    unit, factor = next((u for u in units if n_bytes >= u[1]), units[-1])
    value = n_bytes / factor
    step = factor // (100 if value < 10 else 10 if value < 100 else 1)
    return f"{-(-n_bytes // step) * step / factor:g}{unit}"
