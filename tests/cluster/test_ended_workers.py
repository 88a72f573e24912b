"""Workers that end before a run begins on them are not waited for."""

from __future__ import annotations

import os
import signal
import threading
import time

from maxslices.cluster.workers import opened_workers, wait_for_workers


def test_a_worker_that_ends_while_it_is_described_is_left_out(client):
    wait_for_workers(client, 2)
    address, pid = next(iter(client.run(os.getpid).items()))
    busy = client.submit(time.sleep, 600, workers=[address], pure=False)
    facts = []

    def describe():
        with opened_workers(client) as workers:
            facts.extend(workers.facts)

    describing = threading.Thread(target=describe, daemon=True)
    describing.start()
    while len(client.processing()[address]) < 2:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    describing.join(60)
    assert facts
    assert address not in {each.address for each in facts}
    client.cancel([busy])
    wait_for_workers(client, 2)
