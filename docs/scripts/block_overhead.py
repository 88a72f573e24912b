"""What a block costs that does nothing: through the scheduler, in time and in its memory.

    python docs/scripts/block_overhead.py --blocks 100000 --workers 2

They are dealt out as those of a run are, up to 16 in a share, and some in shares of one. The
scheduler is in this process, so its memory is what this process grows by.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import psutil

from maxslices.workers.dealing import Dealer
from maxslices.workers.local_cluster import local_client
from maxslices.workers.share_sizes import MOST_BLOCKS


def nothing(job: Any, share: Any) -> None:
    """Do nothing."""


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--alone", type=int, default=2_000, help="blocks in shares of one")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with local_client(given.workers, None) as client:
        process = psutil.Process()
        for most, n_blocks in ((MOST_BLOCKS, given.blocks), (1, given.alone)):
            before, most_bytes = process.memory_info().rss, 0
            cpu_s, began = process.cpu_times(), time.perf_counter()
            dealer, count = Dealer(client, {}, most_blocks=most), 0
            for share, _ in dealer.deal(nothing, None, 0, n_blocks, 1):
                count += share.stop - share.start
                if count % 100 == 0 or most > 1:
                    most_bytes = max(most_bytes, process.memory_info().rss - before)
            took_s, now = time.perf_counter() - began, process.cpu_times()
            spent_s = now.user + now.system - cpu_s.user - cpu_s.system
            print(
                f"shares of up to {most}: {count} blocks, {1e3 * took_s / count:.3f} ms each "
                f"({1e3 * spent_s / count:.3f} ms of processor time of the scheduler's process), "
                f"+{most_bytes / 1e6:.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
