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
"""Slices from which a block's fixed costs (calls, launches, seeks) hardly count. Flat-field and
minus-log took as long in blocks of 16, 32 or 64 slices, Paganin 5 % less in 32 than in
16 (H200, docs/benchmarks/tried.md)."""
AUTO_BLOCKS = 32
"""Number of blocks that a worker's part of a scan is cut into if they are then larger than
`AUTO_SLICES`. Fewer blocks gain nothing: nothing is computed before the first has come, on the CPU
one of them is measured, which takes longer, and the progress bar gets coarser."""
MIN_BLOCKS = 4
"""Least number of blocks in a row after growing: with fewer, reading and writing overlap with
little."""
SHARES = 2
"""Shares that each of several workers has at least; between two of them nothing overlaps. Blocks of
64 rows are two shares of four on each of four H200s: 4.2 s for LPRec3d and the stripes before it,
saved. Blocks of 256 rows, two shares of one: 6.5 s (2026-11-27)."""
CALL_SHARE = 0.05
"""Largest ratio of a call's fixed time to the time of its slices: below it, a block of twice the
size gains at most 2.5 %."""
MOVED_BYTES_PER_S = 20e9
"""Bytes that a link, or a disk's cache, moves in a second at least. Slices that are computed faster
than that wait for it in blocks of any size. (One H200's link moves 55 GB/s, with four cards in use
34.)"""


def check_block(block: BlockChoice) -> None:
    """Check a block size as a user gives it.

    Raises
    ------
    UsageError
        If it is neither "auto", "max" nor a positive number.
    """
    is_number = isinstance(block, Integral) and not isinstance(block, bool) and block >= 1
    if not is_number and block not in ("auto", "max"):
        raise UsageError(f"block must be 'auto', 'max' or a positive number, not {block!r}")


def wanted_block(block: BlockChoice, section: SectionModel, n_workers: int = 1) -> int:
    """Block to aim at, whether it fits or not; "auto" exceeds no worker's part of the slices."""
    total = section.n_slices
    if block == "max":
        return total
    if not isinstance(block, str):
        return min(int(block), total)
    share = -(-total // (AUTO_BLOCKS * n_workers))
    wanted = max(AUTO_SLICES, share, 4 * sum(section.halo), section.least_block)
    return min(_doubled_for_calls(wanted, section, n_workers), -(-total // n_workers))


def _doubled_for_calls(block: int, section: SectionModel, n_workers: int) -> int:
    """Double a block until the fixed time of a call hardly counts.

    It is not doubled if reading and writing would overlap with too few blocks, or if the transfer
    of the slices takes longer than computing them.
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
    """Choose a section's block: by memory, then by the blocks whose results agree.

    Results agree for multiples of the section's `block_multiple`, from its `least_block` on. The
    size that a user asks for is used in any case, and the reason warns if it disagrees.

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
            why += f"; blocks that are no multiple of {multiple} give another result"
        else:
            why += f"; a multiple of {multiple}, as others give another result"
    if least > multiple:
        agreeing = (
            None if isinstance(block, int) else _agreeing(chosen, total, least, multiple, largest)
        )
        chosen = agreeing or chosen
        why += f"; smaller ones than {least} give another result"
        if min(chosen, total % chosen or chosen) < least:
            why += f", and the last has {total % chosen or chosen}"
    return chosen, largest, why


def _multiple_of(number: int, block: int, most: int) -> int:
    """Next multiple of a number from `block` up, up to `most`; else the next one down."""
    up = -(-block // number) * number
    return up if up <= most else block - block % number or block


def _agreeing(block: int, total: int, least: int, multiple: int, largest: int) -> int | None:
    """Size nearest to `block` with which the last block has at least `least` slices; or None."""
    sizes = [n for n in range(least, min(total, largest) + 1) if n == total or n % multiple == 0]
    sizes.sort(key=lambda size: abs(size - block))
    return next((size for size in sizes if (total % size or size) >= least), None)


def _by_memory(
    block: BlockChoice, placement: Placement, available: Available
) -> tuple[int, int, str]:
    """Block, the largest that fits, and the reason, as if all blocks agreed.

    Two sizes fit. `largest` is all slices if they fit in one block, which is then alone. Otherwise
    it is `overlapping`: the largest with which the next block is read while one is computed.
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
        return wanted, largest, f"block as asked for; {fits}"
    if wanted >= total:
        if largest >= total:
            return total, largest, f"block auto: {fits} in one block"
        return even(largest), largest, f"block auto: {bound} allow no more than {largest}"
    overlapping = placement.max_part(available)
    if overlapping >= wanted:
        busy = f"{wanted} keep it busy"
        if _doubled_for_calls(1, section, placement.n_workers) > 1:
            call_s, slice_s = section.pace_s
            busy += f" (a call takes {1e3 * call_s:.2g} ms and {1e3 * slice_s:.2g} ms a slice)"
        return even(wanted), largest, f"block auto: {busy}; {fits}"
    if largest >= total and 2 * overlapping < wanted:
        return total, largest, f"block auto: {fits} in one block, but few beside others"
    return even(overlapping), overlapping, f"block auto: {bound} allow no more than {overlapping}"


def _even(block: int, total: int, n_workers: int) -> int:
    """Smallest block with which no worker has more blocks than with `block`."""
    n_of_each = -(-total // (block * n_workers))
    return -(-total // (n_of_each * n_workers))


def lacking_bytes(placement: Placement, available: Available) -> int:
    """Memory that a section lacks for one slice; at most 0 if it fits."""
    if placement.max_block(available):
        return 0  # also where only all slices in one block fit, with nothing else on its way
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
        For the section that lacks most, with what would help.
    """
    pairs = list(zip(placements, available, strict=True))
    placement, left = max(pairs, key=lambda pair: lacking_bytes(*pair))
    if lacking_bytes(placement, left) <= 0:
        return
    texts = [str(does_not_fit(placement, budgets, left))]
    texts += [
        f"{each.name} with {each.spares} takes less and rounds coarsely"
        for each in placement.section.steps
        if each.spares
    ]
    if budgets.kind != "cpu":
        texts.append("--device cpu runs all of it on the host")
    raise DoesNotFitError(". ".join(texts))


def does_not_fit(placement: Placement, budgets: Budgets, available: Available) -> DoesNotFitError:
    """Error with what a section needs for one slice, and what would help."""
    beside, section = "", placement.section
    if available.stores_bytes:
        beside = f" beside {format_bytes(available.stores_bytes)} that are kept in memory"
    worst, unit = section.highest(1), SLICE_NAMES[section.slice_dim]
    needed = placement.device_bytes(1)
    if needed <= available.device_bytes and available.host_bytes is not None:
        lacking = placement.host_bytes(1) - available.host_bytes
        return DoesNotFitError(
            f"moving one {unit} of {worst.name} to the device and back needs "
            f"{format_bytes(placement.host_bytes(1))} of host memory, and "
            f"{format_bytes(max(available.host_bytes, 0))} are available{beside}: allow "
            f"--host-memory {ask_for(budgets.host_budget_bytes + lacking)}"
        )
    dims = "x".join(map(str, worst.input.other_dims(section.slice_dim)))
    n_slices = (
        f"one {unit}" if worst.looked_at < 2 else f"the {worst.looked_at} {unit}s it looks at"
    )
    parts = []
    if any(section.halo):
        parts.append("with a halo of {}+{}".format(*section.halo))
    side_bytes = section.side.bytes(1)
    if side_bytes:
        parts.append(f"{format_bytes(side_bytes)} of flats and darks included")
    about = f" ({', '.join(parts)})" if parts else ""
    lacking = needed - available.device_bytes
    return DoesNotFitError(
        f"{worst.name} needs {format_bytes(needed)} for {n_slices} of {dims} "
        f"{worst.input.dtype}{about}, and {format_bytes(max(available.device_bytes, 0))} are "
        f"available{beside}: allow --memory {ask_for(budgets.budget_bytes + lacking)}, or bin or "
        "crop the scan"
    )


def check_block_fits(
    placements: Sequence[Placement], available: Sequence[Available], block: BlockChoice
) -> None:
    """Check that the block that is asked for fits in all sections, each of which has room for one.

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
            too_large.append((largest, f"{text}, and {placement.bound(left)} allow {largest}"))
    if too_large:
        largest, text = min(too_large)
        raise DoesNotFitError(f"{text}: use --block {largest} or --block max")


def ask_for(n_bytes: int) -> str:
    """Amount of memory as the command line takes it, rounded up to three digits."""
    units = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
    unit, factor = next((u for u in units if n_bytes >= u[1]), units[-1])
    value = n_bytes / factor
    step = factor // (100 if value < 10 else 10 if value < 100 else 1)
    return f"{-(-n_bytes // step) * step / factor:g}{unit}"
