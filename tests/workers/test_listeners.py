"""Only the run itself can call the workers of this machine."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import distributed
import psutil
import pytest
from distributed import Security

from maxslices.workers.local_cluster import local_client
from tests.workers.listeners import can_call


def _listeners() -> set[tuple[str, int]]:
    """Address and port of each TCP listener of this process and those below it."""
    me = psutil.Process()
    return {
        (listener.laddr.ip, listener.laddr.port)
        for process in (me, *me.children(recursive=True))
        for listener in process.net_connections("tcp")
        if listener.status == psutil.CONN_LISTEN
    }


def _ports_of_dask(client: distributed.Client) -> set[int]:
    """Ports of the scheduler, the workers and their nannies."""
    info = client.scheduler_info(n_workers=-1)
    addresses = [info["address"], *info["workers"]]
    addresses += [worker["nanny"] for worker in info["workers"].values()]
    return {int(address.rpartition(":")[2]) for address in addresses}


def test_all_processes_listen_on_the_loopback_interface_only(client):
    listeners = _listeners()
    assert _ports_of_dask(client) <= {port for _, port in listeners}
    assert {address for address, _ in listeners} == {"127.0.0.1"}


@pytest.mark.parametrize("security", [None, Security.temporary()], ids=["no", "another"])
def test_a_call_with_another_certificate_is_refused(client, security):
    kind = "tcp" if security is None else "tls"
    for port in _ports_of_dask(client):
        assert not can_call(f"{kind}://127.0.0.1:{port}", security)


def test_a_call_with_the_certificate_of_the_run_is_answered(client):
    for port in _ports_of_dask(client):
        assert can_call(f"tls://127.0.0.1:{port}", client.security)


def test_no_process_serves_pages(client):
    for port in {port for _, port in _listeners()} - _ports_of_dask(client):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"GET /info/main/workers.html HTTP/1.0\r\n\r\n")
            assert connection.recv(64).partition(b"\r\n")[0].split()[1:2] in ([b"404"], [])


def _folder(dask_worker: distributed.Worker) -> str:
    return dask_worker.local_directory


def test_each_worker_has_a_folder_that_other_users_cannot_enter(client):
    for name in client.run(_folder).values():
        own = Path(name)
        parents = [own, *own.parents]
        private = [
            p
            for p in parents
            if p.stat().st_uid == os.getuid()
            and not p.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        ]
        assert any("maxslices-" in path.name for path in private)


def test_the_folder_is_removed_with_the_workers():
    with local_client(1, None) as other:
        (name,) = other.run(_folder).values()
        assert Path(name).is_dir()
    assert not [
        path
        for path in (Path(name), *Path(name).parents)
        if "maxslices-" in path.name and path.exists()
    ]
