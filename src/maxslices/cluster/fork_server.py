"""A process that has imported what workers need, of which they are forked.

Dask starts each worker as a new Python by default. Then every worker imports Dask, this package,
CuPy and torch for itself, which takes 3 to 7 s of a processor, and holds a copy of all that. Forked
workers share what is imported: it is there once, and a worker that is replaced begins at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from multiprocessing import forkserver

_OURS = "maxslices.cluster.forked"
"""What all workers run: its import brings Dask and the runner."""


def start_fork_server(libraries: Iterable[str]) -> str:
    """Start the process, unless there is one; the name of the way in which Dask starts workers.

    It imports beside what the caller does next.

    Parameters
    ----------
    libraries : iterable of str
        Libraries that methods need. Their import must not begin to use a GPU, which a forked
        process cannot go on with; so methods themselves are no such libraries.

    Returns
    -------
    str
        "forkserver", or "spawn" where a system's own libraries do not stand being forked.
    """
    if sys.platform != "linux":
        return "spawn"
    forkserver.set_forkserver_preload([_OURS, *libraries])
    forkserver.ensure_running()
    return "forkserver"
