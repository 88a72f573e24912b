"""How large is too large: plan a scan of 100 TB for 256 GPUs, and simulate its dealing out.

    python docs/scripts/large_scan.py
    python docs/scripts/large_scan.py --shape 9000x9000x9600 --gpus 64 --disk 50GB

The plan is made, and its seconds are printed. Then the shares of each section are dealt out by
the rule of the cluster to GPUs that all read from and write to one disk. What a GPU computes is
not known without one: it is left out, or given as --slices-per-second. What the scheduler takes
for a share was measured with block_overhead.py.
"""

from __future__ import annotations

import argparse
import heapq
import time

from maxslices import ArraySpec, Plan, plan
from maxslices.core.arrays import parse_shape
from maxslices.core.units import format_bytes, parse_bytes
from maxslices.planner import SectionPlan
from maxslices.workers.share_sizes import ShareSizes

STEPS = ["dark_flat_field_correction", "minus_log", "remove_stripe_based_sorting", "fbp"]
SHARE_S = 0.0057
"""Processor time of the scheduler's process for a share (block_overhead.py, two busy cores)."""


def section_bytes(section: SectionPlan) -> tuple[int, int]:
    """Bytes that all blocks of a section read, and that they write."""
    return section.input.nbytes, section.output.nbytes


def simulate(
    section: SectionPlan, n_gpus: int, disk: float, slices_per_s: float | None, share_s: float
) -> tuple[int, float, float]:
    """Deal a section out; number of shares, seconds, and seconds that the scheduler is busy.

    All GPUs have equal parts of the disk. The scheduler hands out one share after the other.
    """
    n_blocks = -(-section.n_slices // section.block)
    read, written = section_bytes(section)
    block_s = (read + written) / n_blocks / (disk / min(n_gpus, n_blocks))
    if slices_per_s is not None:
        block_s = max(block_s, section.block / slices_per_s)
    gpus, sizes = [str(number) for number in range(n_gpus)], ShareSizes()
    free_at = [(0.0, name, 0.0) for name in gpus]
    left, n_shares, scheduler_s = n_blocks, 0, 0.0
    while left:
        free_s, name, began_s = heapq.heappop(free_at)
        sizes.end(name, name, free_s - began_s)
        begin_s = max(free_s, scheduler_s)
        scheduler_s = begin_s + share_s
        n = sizes.next_blocks(left, name, gpus, begin_s)
        sizes.begin(name, name, n, begin_s)
        heapq.heappush(free_at, (begin_s + share_s + n * block_s, name, begin_s))
        left, n_shares = left - n, n_shares + 1
    return n_shares, max(free_at)[0], n_shares * share_s


def main() -> None:
    """Plan, and simulate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="36000x36000x38600")
    parser.add_argument("--gpus", type=int, default=256)
    parser.add_argument("--on-each", type=int, default=4, help="GPUs of a machine")
    parser.add_argument("--memory", default="140GB", help="of a GPU")
    parser.add_argument("--host-memory", default="1TB", help="of a machine")
    parser.add_argument("--disk", default="100GB", help="bytes a second of the shared disk")
    parser.add_argument("--slices-per-second", type=float, help="that a GPU computes")
    given = parser.parse_args()
    scan = ArraySpec(parse_shape(given.shape), "uint16")
    began = time.perf_counter()
    made: Plan = plan(
        scan,
        STEPS,
        device="cuda",
        memory=given.memory,
        host_memory=given.host_memory,
        workers=given.on_each,
    )
    took_s = time.perf_counter() - began
    print(f"{scan}, {format_bytes(scan.nbytes)}, on {given.gpus} GPUs: planned in {took_s:.2f} s")
    disk, total_s, total_bytes = parse_bytes(given.disk), 0.0, 0
    for number, section in enumerate(made.sections, start=1):
        read, written = section_bytes(section)
        shares, run_s, scheduler_s = simulate(
            section, given.gpus, disk, given.slices_per_second, SHARE_S
        )
        n_blocks = -(-section.n_slices // section.block)
        total_s, total_bytes = total_s + run_s, total_bytes + read + written
        print(
            f"section {number}: {n_blocks:,} blocks of {section.block} in {shares:,} shares; reads "
            f"{format_bytes(read)}, writes {format_bytes(written)}; {run_s / 3600:.2f} h, the "
            f"scheduler is busy for {scheduler_s:.0f} s; {section.estimated_bytes / 1e9:.0f} GB on "
            "a GPU"
        )
    ideal_s = total_bytes / disk
    print(
        f"{total_s / 3600:.2f} h in all; {format_bytes(total_bytes)} at {format_bytes(disk)}/s "
        f"alone take {ideal_s / 3600:.2f} h; scratch files {format_bytes(made.scratch_bytes)}, "
        f"results {format_bytes(made.result_bytes)}"
    )


if __name__ == "__main__":
    main()
