"""Waiting for workers: never without a limit, and never without a word."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError

if TYPE_CHECKING:
    from distributed import Client

WARN_S = 30.0
"""Seconds after which a worker that sends nothing is named. Workers report to the scheduler every
half second to a few seconds, by their number, unless a method holds Python's lock."""
MOST_DEATHS = 3
"""Workers that may end before they have answered: a worker killed by accident does not end a run,
and methods that end each process that imports them do soon."""
END_S = 1.0
"""Seconds for which a run that ends waits, at each of three steps, for workers to notice. A share
that takes longer ends by itself, or with its process: it writes the same bits to a place of its
own."""
_PRESUMED_DEAD_S = 300.0
"""Dask's default of ``distributed.scheduler.worker-ttl``."""


@dataclass(slots=True)
class WorkerWatch:
    """Watches the workers of a cluster for whoever waits for one of them.

    A worker that sends nothing for `WARN_S` seconds is named in a warning. Dask itself gives up a
    worker that sends nothing for ``distributed.scheduler.worker-ttl``: it starts it anew where it
    can, and other workers do its work.
    """

    client: Client
    """The cluster."""
    _heard: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Address -> the scheduler's time of its last message, and the time here when that changed."""
    _named: set[str] = field(default_factory=set)
    _dead: set[str] = field(default_factory=set)

    def look(self) -> dict[str, Any]:
        """Look at the workers; what the scheduler knows of each, by address."""
        info: dict[str, Any] = self.client.scheduler_info(n_workers=-1)["workers"]
        now_s = time.monotonic()
        for address, each in info.items():
            heard_s, since_s = self._heard.get(address, (None, now_s))
            if heard_s != each["last_seen"]:
                self._heard[address] = each["last_seen"], now_s
                self._named.discard(address)
            elif now_s - since_s >= WARN_S and address not in self._named:
                self._named.add(address)
                warnings.warn(
                    f"worker {address} on {each['host']} has not answered for "
                    f"{now_s - since_s:.0f} s: it is stopped or swapped out, its disk or device "
                    "does not answer, or a method holds Python's lock; after "
                    f"{_presumed_dead_s():.0f} s its slices are given to another worker",
                    stacklevel=2,
                )
        return info

    def died(self, address: str) -> None:
        """Note that a worker ended before it answered.

        Raises
        ------
        DeviceError
            If too many did.
        """
        self._dead.add(address)
        if len(self._dead) >= MOST_DEATHS:
            raise DeviceError(
                f"{len(self._dead)} workers ended before they answered, the last one {address}: "
                "killed by the system for their memory, or by a module that the pipeline's "
                "methods import; run the pipeline in one process to see which"
            )


def _presumed_dead_s() -> float:
    """Seconds of silence after which Dask gives a worker up."""
    import dask
    from dask.utils import parse_timedelta

    configured = dask.config.get("distributed.scheduler.worker-ttl", None)
    return float(parse_timedelta(configured)) if configured else _PRESUMED_DEAD_S


def call_on_all(
    client: Client, function: Callable[..., Any], *args: Any, limit_s: float = END_S
) -> None:
    """Have each worker call a function during its work; wait no longer than `limit_s` seconds.

    Errors are ignored: a worker that hangs, or is gone, cannot be asked.
    """

    def call() -> None:
        with suppress(Exception):
            client.run(function, *args, on_error="ignore")

    if client.status != "running":
        return
    asking = threading.Thread(target=call, daemon=True)
    with suppress(RuntimeError):  # no memory for a thread
        asking.start()
        asking.join(limit_s)
