"""Calls of processes that listen."""

from __future__ import annotations

import asyncio

from distributed import Security
from distributed.core import rpc


def can_call(address: str, security: Security | None) -> bool:
    """Whether a process at an address answers a call."""

    async def call() -> bool:
        options = {} if security is None else security.get_connection_args("client")
        try:
            async with rpc(address, timeout=2, connection_args=options) as other:
                await asyncio.wait_for(other.identity(), 2)
        except (OSError, TimeoutError, ValueError, RuntimeError):
            return False
        return True

    return asyncio.run(call())
