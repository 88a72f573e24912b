"""What the ends of shares cost: blocks that sleep, dealt out to workers through Dask.

    python docs/scripts/share_ends.py --workers 2 4

A block is read, computed and written, each for some ms, the next one being read meanwhile and the
last one written; a share begins with what its worker has to prepare. All of that is slept, so that
other programs hardly matter. The time is compared with that of a worker that never stops.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from maxslices.workers.dealing import Dealer
from maxslices.workers.local_cluster import local_client

CASES = {
    "computing 130 ms, reading 3, writing 10": (3, 130, 10),
    "reading, computing and writing 50 ms": (50, 50, 50),
}
PREPARING_MS = (20, 100)


def slept_s(stages: tuple[int, ...], preparing: int, n_blocks: int) -> float:
    """Seconds that a share takes."""
    return (preparing + sum(stages) + (n_blocks - 1) * max(stages)) / 1e3


def work(job: Any, share: Any) -> None:
    """Sleep for as long as a share takes."""
    time.sleep(slept_s(*job, share.stop - share.start))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--blocks", type=int, default=32, help="for each worker")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for count in given.workers:
        with local_client(count, None) as client:
            client.wait_for_workers(count)
            for name, stages in CASES.items():
                for preparing in PREPARING_MS:
                    least_s, n_shares = float("inf"), 0
                    for _ in range(given.rounds):
                        began_s, job = time.perf_counter(), (stages, preparing)
                        deal = Dealer(client, {}).deal(work, job, 0, count * given.blocks, 1)
                        n_shares = sum(1 for _ in deal)
                        least_s = min(least_s, time.perf_counter() - began_s)
                    alone_s = slept_s(stages, preparing, given.blocks)
                    print(
                        f"{count} workers, {name}, preparing {preparing}: {n_shares} shares, "
                        f"{least_s:.2f} s; {100 * (least_s / alone_s - 1):.0f} % more than "
                        f"{alone_s:.2f} s"
                    )


if __name__ == "__main__":
    main()
